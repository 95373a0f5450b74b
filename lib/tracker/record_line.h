// SPDX-License-Identifier: MIT
// A record as people read it. log.jsonl has every value with every digit; the console has what a
// person looks at, in one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tracker/record.h"

namespace dalle2 {

/// A part of the line: "loss 0.3065 0.4217", "108 samples/s".
struct ShownValue {
  std::string label = {};             ///< before the values
  std::vector<LogValue> values = {};  ///< several are one a part of the model
  std::string unit = {};              ///< behind them
  int digits = 4;                     ///< significant ones, at most
};
/// None: the record is for log.jsonl alone.
using ShownRecord = std::vector<ShownValue>;

/// "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s"
std::string record_line(const ShownRecord& shown, int64_t step);

/// Every value under its own name.
ShownRecord shown_in_full(const LogRecord& record);

}  // namespace dalle2
