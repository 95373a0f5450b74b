// SPDX-License-Identifier: MIT
#include "base/this_process.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace dalle2 {

std::string program_version() {
  return DALLE2_VERSION;
}

std::string base_library_versions() {
  return fmt::format("fmt {}.{}.{}, nlohmann_json {}.{}.{}",
                     FMT_VERSION / 10000,
                     FMT_VERSION / 100 % 100,
                     FMT_VERSION % 100,
                     NLOHMANN_JSON_VERSION_MAJOR,
                     NLOHMANN_JSON_VERSION_MINOR,
                     NLOHMANN_JSON_VERSION_PATCH);
}

ModuleFunction function_of_module(const char* file, const char* function) {
  // Without a slash in its name it is looked for along the program's RPATH.
  void* const module = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  void* const found = module == nullptr ? nullptr : dlsym(module, function);
  if (found != nullptr) return {found, ""};
  const char* const fault = dlerror();
  return {nullptr, fault == nullptr ? file : fault};
}

bool says_out_of_memory(const std::string& message) {
  for (const char* words :
       {"out of memory",
        "not enough memory",
        "can't allocate memory",
        "_STATUS_ALLOC_FAILED",
        "could not create a primitive",  // of oneDNN, which has no other word for it
        "could not create a memory object",
        "bad_alloc",
        "NVML_SUCCESS =="}) {
    if (message.find(words) != std::string::npos) return true;
  }
  return false;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

uint64_t process_memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

uint64_t machine_memory() {
  uint64_t least = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemTotal:")) least = std::stoull(line.substr(9)) * 1024;
  }
  // Version 2 of control groups: the line "0::/path"; a limit holds for all groups below.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    const std::filesystem::path root = "/sys/fs/cgroup";
    for (auto group = root / line.substr(4);; group = group.parent_path()) {
      uint64_t limit = 0;  // the file holds "max" where there is none
      if (std::ifstream(group / "memory.max") >> limit) least = std::min(least, limit);
      if (group == root || !group.has_relative_path()) break;
    }
  }
  return least;
}

}  // namespace dalle2
