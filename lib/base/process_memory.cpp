// SPDX-License-Identifier: MIT
#include "base/process_memory.h"

#include <fstream>

namespace dalle2 {

uint64_t process_memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace dalle2
