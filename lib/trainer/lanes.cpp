// SPDX-License-Identifier: MIT
#include "trainer/lanes.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <omp.h>

#include <algorithm>

namespace dalle2 {

LanePlan plan_lanes(const PassSettings& settings, int64_t batch, int64_t gradient_bytes) {
  const std::optional<int64_t>& most = settings.max_batch_size;
  const int64_t threads = settings.device.is_cpu() ? at::get_num_threads() : 1;
  const int64_t at_once = std::min(batch, most.value_or(batch));
  const bool fits = (threads - 1) * gradient_bytes <= kMostLaneGradientBytes;
  if (!settings.has_lanes || threads < 2 || at_once < threads || !fits) return {1, most};
  return {threads, (at_once + threads - 1) / threads};
}

void in_lanes(int64_t lanes,
              size_t count,
              const std::function<void(int64_t lane, size_t i)>& work) {
  const auto run = [&](int64_t lane) {
    for (auto i = static_cast<size_t>(lane); i < count; i += static_cast<size_t>(lanes)) {
      work(lane, i);
    }
  };
  if (lanes == 1) return run(0);
  const at::ThreadLocalState state;
  at::parallel_for(0, lanes, 1, [&](int64_t begin, int64_t end) {
    const at::ThreadLocalStateGuard guard(state);
    // A thread gets its number when something first asks for it: in LibTorch, and here. Afterwards it would replace
    // that of the lane, and oneDNN would wait for threads that a lane does not have.
    at::get_num_threads();
    at::internal::lazy_init_num_threads();
    omp_set_num_threads(1);  // until the region ends
    for (int64_t lane = begin; lane < end; ++lane) run(lane);
  });
}

}  // namespace dalle2
