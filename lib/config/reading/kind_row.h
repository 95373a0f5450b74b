// SPDX-License-Identifier: MIT
// The row of a kind from the types of its config.
#pragma once

#include <string>

#include "config/kinds.h"
#include "config/reading/struct_schema.h"
#include "config/reading/struct_tables.h"

namespace dalle2 {

/// @tparam Config with its kKind @tparam parse reads a text: (json, origin, options)
/// @param before what stands before the tables of the kind @param title of its sections
/// @param after what stands after them
template <class Config, auto parse>
ConfigKind kind_row(std::string before, std::string title, std::string after = "") {
  return {.key = Config::kKind,
          .available = true,
          .fill_in = [](const std::string& json,
                        const ReadOptions& options) { return parse(json, "", options).full_json; },
          .schema = [] { return struct_schema(Config{}); },
          .docs =
              [before = std::move(before), title = std::move(title), after = std::move(after)] {
                return before + Tables::section_of(Config{}, "", title) + after;
              }};
}

}  // namespace dalle2
