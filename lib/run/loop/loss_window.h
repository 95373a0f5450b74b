// SPDX-License-Identifier: MIT
// Losses that stay on the device until somebody wants a number of many: reading one synchronises.
#pragma once

#include <torch/types.h>

#include <cmath>
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
  void add(const at::Tensor& loss, double times = 1) {
    const at::Tensor more = loss.detach().to(at::kDouble) * times;
    sum_ = sum_.defined() ? sum_ + more : more;
  }
  /// 0 without losses. Waits for the device.
  double value() const { return sum_.defined() ? sum_.item<double>() : 0.0; }

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
  void push(int64_t part, const at::Tensor& loss) {
    std::deque<at::Tensor>& recent = losses_.at(static_cast<size_t>(part - 1));
    recent.push_back(loss);
    if (recent.size() > length_) recent.pop_front();
  }
  /// Reads the losses from the device.
  LossAverage average(int64_t part) const {
    const at::Tensor losses = stacked(losses_.at(static_cast<size_t>(part - 1)));
    const at::Tensor finite = losses.masked_select(losses.isfinite());
    const double mean = finite.numel() > 0 ? finite.mean().item<double>() : std::nan("");
    return {.mean = mean, .left_out = losses.numel() - finite.numel()};
  }
  void clear() {
    for (std::deque<at::Tensor>& losses : losses_) losses.clear();
  }

  /// A list of tensors [n], one a part, oldest loss first.
  Value state() const {
    List list;
    for (const std::deque<at::Tensor>& losses : losses_)
      list.items.emplace_back(stacked(losses).cpu());
    return list;
  }
  /// @throws DataError
  void load(const Cursor& saved) {
    clear();
    for (size_t part = 0; part < saved.size() && part < losses_.size(); ++part) {
      const at::Tensor losses = saved.at(part).as_tensor().to(device_, at::kFloat);
      for (const at::Tensor& loss : losses.flatten().unbind())
        push(static_cast<int64_t>(part) + 1, loss.clone());
    }
  }

 private:
  static at::Tensor stacked(const std::deque<at::Tensor>& losses) {
    if (losses.empty()) return at::empty({0}, at::kFloat);
    return at::stack(std::vector<at::Tensor>(losses.begin(), losses.end()));
  }

  std::vector<std::deque<at::Tensor>> losses_;
  size_t length_;
  at::Device device_;
};

}  // namespace dalle2
