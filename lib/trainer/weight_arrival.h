// SPDX-License-Identifier: MIT
// Updated weights that come from other ranks beside what a rank computes meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <vector>

#include "trainer/rank_shards.h"

namespace dalle2 {

/// While weights are coming, each operator of this thread waits, before it begins, for the stretches
/// that its tensors lie in, and for no others: a forward pass begins with its first layers while the
/// last are on their way. That holds for every network and needs nothing of it. What goes around
/// operators (another thread, a backward pass, a raw pointer) comes after finish() or await_weights().
class WeightArrival {
 public:
  WeightArrival() = default;
  ~WeightArrival();
  WeightArrival(const WeightArrival&) = delete;
  WeightArrival& operator=(const WeightArrival&) = delete;

  /// @param whole [n] of which `coming` are stretches. Nothing may be coming already.
  void begin(const at::Tensor& whole, std::vector<ComingSlice> coming);
  /// Waits for what has not arrived. @throws NetworkError for a rank that is gone or stuck, also if an
  /// operator found that out: an operator cannot, and computes on with old values
  void finish();

  /// For operators: waits for what `tensor` lies in.
  void wait_for(const at::Tensor& tensor) noexcept;

 private:
  at::Tensor whole_;
  std::vector<ComingSlice> coming_;
  std::exception_ptr fault_;
  bool is_begun_ = false;
};

/// Waits for all weights that are coming to this thread. @throws as WeightArrival::finish()
void await_weights();

}  // namespace dalle2
