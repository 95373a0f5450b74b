// SPDX-License-Identifier: MIT
// The last losses of each part of the model, on the device: reading them synchronises. A checkpoint
// has them, so that a resumed run logs what it would have logged.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "checkpoint/state_dict.h"

namespace dalle2 {

/// Updates between two records of the log, and losses that one averages.
inline constexpr int64_t kLogEveryIterations = 10;

struct LossAverage {
  double mean = 0;       ///< of the finite ones; NaN if there is none
  int64_t left_out = 0;  ///< losses that are not finite
};

class LossWindow {
 public:
  LossWindow(int64_t parts, const at::Device& device)
      : losses_(static_cast<size_t>(parts)), device_(device) {}

  /// @param loss [] float32 of part `part` (from 1)
  void push(int64_t part, const at::Tensor& loss);
  /// Reads the losses from the device.
  LossAverage average(int64_t part) const;
  void clear();

  /// A list of tensors [n], one a part, oldest loss first.
  Value state() const;
  /// Also a single tensor, as version 0.1.0 wrote for a prior. @throws DataError
  void load(const Cursor& saved);

 private:
  std::vector<std::deque<at::Tensor>> losses_;
  at::Device device_;
};

}  // namespace dalle2
