// SPDX-License-Identifier: MIT
// What a run reports: named values in a fixed order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dalle2 {

using LogValue = std::variant<int64_t, double, std::string>;
/// Named values in the order they are shown, e.g. {{"Epoch", 3}, {"Unet 0 Training Loss", 0.12}}.
using LogRecord = std::vector<std::pair<std::string, LogValue>>;

/// A picture for people: a whole PNG file, and its caption (empty: none).
struct LogImage {
  std::string png;
  std::string caption;
  std::string name = {};  ///< of the file; empty: by step, section and place in the list
};

/// Where a logged picture lies.
struct StoredImage {
  std::string path;  ///< relative to data_path
  std::string caption;
  std::string_view png = {};  ///< its bytes, while it is being logged
};

}  // namespace dalle2
