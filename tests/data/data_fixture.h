// SPDX-License-Identifier: MIT
// What tests/parity/make_data.py and its kin wrote.
#pragma once

#include <nlohmann/json.hpp>

#include "io/files/atomic_file.h"
#include "io/formats/npy.h"
#include "support/fixture_folder.h"

namespace dalle2::test {

inline std::string data_fixture(const std::string& name) {
  return fixture_folder("data") + "/" + name;
}

inline nlohmann::json data_json(const std::string& name) {
  return nlohmann::json::parse(read_file(data_fixture(name)));
}

}  // namespace dalle2::test
