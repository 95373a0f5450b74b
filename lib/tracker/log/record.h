// SPDX-License-Identifier: MIT
// What a run reports: named values in a fixed order, and the line that people read of them. log.jsonl has
// every value with every digit; the console has what a person looks at.
#pragma once

#include <cstdint>
#include <string>
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

struct StoredImage {
  std::string path;  ///< relative to data_path
  std::string caption;
};

/// A part of the line: "loss 0.3065 0.4217", "108 samples/s".
struct ShownValue {
  std::string label = {};             ///< before the values
  std::vector<LogValue> values = {};  ///< several are one a part of the model
  std::string unit = {};              ///< after them
  int digits = 4;                     ///< significant ones, at most
};
/// None: the record is for log.jsonl alone.
using ShownRecord = std::vector<ShownValue>;

/// "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s"
std::string record_line(const ShownRecord& shown, int64_t step);

ShownRecord shown_in_full(const LogRecord& record);

}  // namespace dalle2
