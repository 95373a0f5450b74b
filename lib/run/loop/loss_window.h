// SPDX-License-Identifier: MIT
// Losses that stay on the device until somebody wants a number of many: reading one synchronises.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "checkpoint/state_dict.h"

namespace dalle2 {

struct LossAverage {
  double mean = 0;       ///< of the finite ones; NaN if there is none
  int64_t left_out = 0;  ///< losses that are not finite
};

/// A sum of losses on their device.
class LossSum {
 public:
  /// @param loss [] @param times how often it counts
  void add(const at::Tensor& loss, double times = 1);
  /// 0 without losses. Waits for the device.
  double value() const;

 private:
  at::Tensor sum_;  // [] float64
};

/// The last losses of each part of the model. A checkpoint has them, so that a resumed run logs what
/// it would have logged.
class LossWindow {
 public:
  /// @param length losses of a part that are kept: the updates between two records of the log
  LossWindow(int64_t parts, int64_t length, const at::Device& device)
      : losses_(static_cast<size_t>(parts)),
        length_(static_cast<size_t>(length)),
        device_(device) {}

  /// @param loss [] float32 of part `part` (from 1)
  void push(int64_t part, const at::Tensor& loss);
  /// Reads the losses from the device.
  LossAverage average(int64_t part) const;
  void clear();

  /// A list of tensors [n], one a part, oldest loss first.
  Value state() const;
  /// @throws DataError
  void load(const Cursor& saved);

 private:
  std::vector<std::deque<at::Tensor>> losses_;
  size_t length_;
  at::Device device_;
};

}  // namespace dalle2
