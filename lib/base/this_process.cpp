// SPDX-License-Identifier: MIT
#include "base/this_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
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

}  // namespace dalle2
