// SPDX-License-Identifier: MIT
// Where the fixtures lie that the references made.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace dalle2::test {

/// Folder of the fixtures of one unit: fresh ones if DALLE2_PARITY_DIR holds them, else the committed.
inline std::string fixture_folder(const std::string& unit) {
  const char* fresh = std::getenv("DALLE2_PARITY_DIR");
  if (fresh != nullptr && std::filesystem::is_directory(std::string(fresh) + "/" + unit)) {
    return std::string(fresh) + "/" + unit;
  }
  return std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/" + unit;
}

}  // namespace dalle2::test
