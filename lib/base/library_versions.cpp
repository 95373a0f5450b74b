// SPDX-License-Identifier: MIT
#include "base/library_versions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace dalle2 {

std::string base_library_versions() {
  return fmt::format("fmt {}.{}.{}, nlohmann_json {}.{}.{}",
                     FMT_VERSION / 10000,
                     FMT_VERSION / 100 % 100,
                     FMT_VERSION % 100,
                     NLOHMANN_JSON_VERSION_MAJOR,
                     NLOHMANN_JSON_VERSION_MINOR,
                     NLOHMANN_JSON_VERSION_PATCH);
}

}  // namespace dalle2
