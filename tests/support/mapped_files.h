// SPDX-License-Identifier: MIT
// What this process has mapped into its memory.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace dalle2::test {

/// Whether a file is mapped that had this path and has no name any more.
inline bool maps_removed_file(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), {});
  return text.find(path + " (deleted)") != std::string::npos;
}

}  // namespace dalle2::test
