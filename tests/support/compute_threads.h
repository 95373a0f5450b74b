// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>

namespace dalle2::test {

/// The number of compute threads, and so of lanes, for as long as it lives.
class ComputeThreads {
 public:
  explicit ComputeThreads(int count) { at::set_num_threads(count); }
  ~ComputeThreads() { at::set_num_threads(before_); }
  ComputeThreads(const ComputeThreads&) = delete;
  ComputeThreads& operator=(const ComputeThreads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

}  // namespace dalle2::test
