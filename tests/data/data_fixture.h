// SPDX-License-Identifier: MIT
// What tests/parity/make_data.py and its kin wrote.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "io/files/atomic_file.h"
#include "io/formats/npy.h"

namespace dalle2::test {

/// Folder of the fixtures of one script: fresh ones if DALLE2_PARITY_DIR holds them, else the
/// committed.
inline std::string fixture_folder(const std::string& unit) {
  const char* fresh = std::getenv("DALLE2_PARITY_DIR");
  if (fresh != nullptr && std::filesystem::is_directory(std::string(fresh) + "/" + unit)) {
    return std::string(fresh) + "/" + unit;
  }
  return std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/" + unit;
}

inline std::string data_fixture(const std::string& name) {
  return fixture_folder("data") + "/" + name;
}

inline nlohmann::json data_json(const std::string& name) {
  return nlohmann::json::parse(read_file(data_fixture(name)));
}

}  // namespace dalle2::test
