// SPDX-License-Identifier: MIT
// Compute lanes: on the CPU the threads share a batch instead of each operation. Every lane takes its
// samples through the network with one thread, and all wait for each other once, not in each operation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "config/reading/reflect.h"
#include "model/pass_scopes.h"
#include "trainer/step_times.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

/// The gradients of the lanes beside the first may take this much memory. Above it networks are so large
/// that threads share their operations well.
inline constexpr int64_t kMostLaneGradientBytes = int64_t{1} << 30;

/// How a batch goes through a network.
struct PassSettings {
  at::Device device;
  MixedPrecision precision = MixedPrecision::no;
  std::optional<int64_t> max_batch_size = {};  ///< samples at once; none: the whole batch
  bool has_lanes = true;                       ///< ModelPlan::has_lanes
  StepTimes* step_times = nullptr;             ///< null: nothing is timed
};

struct LanePlan {
  int64_t lanes = 1;
  std::optional<int64_t> max_batch_size;  ///< samples of a pass in a lane; none: the whole batch
};

/// As many lanes as compute threads; one on a GPU, where passes need the whole batch, with fewer samples
/// than threads, or if the gradients would take too much memory. As many samples go through the network at
/// once as without lanes.
/// @param gradient_bytes of a lane, or other memory that each needs; 0: none
LanePlan plan_lanes(const PassSettings& settings, int64_t batch, int64_t gradient_bytes = 0);

/// work(lane, i) for i = 0 ... count - 1, those of a lane in their order: i modulo `lanes` is the lane. One
/// lane computes with all threads. Lane 0 runs in the calling thread, whose gradient and inference mode
/// all have. Returns when all are done. @throws what one of the lanes throws
void in_lanes(int64_t lanes, size_t count, const std::function<void(int64_t lane, size_t i)>& work);

/// What `draw` makes of the rows of `options`, in chunks on the device and without gradients. Lanes share
/// them if each row has a generator of its own. @param model that draws
template <TensorGroup Options, class Draw>
at::Tensor draw_in_chunks(torch::nn::Module& model,
                          const Options& options,
                          int64_t batch,
                          std::optional<int64_t> max_batch_size,
                          const c10::Device& device,
                          const Draw& draw) {
  const at::NoGradGuard no_grad;
  const EvalScope eval(model);
  PassSettings settings{.device = device, .max_batch_size = max_batch_size, .has_lanes = false};
  int64_t bytes = 0;  // each lane prepares weights of its own
  if constexpr (requires { options.row_generators; })
    settings.has_lanes = !options.row_generators.empty();
  if (settings.has_lanes) {
    for (const at::Tensor& weight : model.parameters())
      bytes += static_cast<int64_t>(weight.nbytes());
  }
  const LanePlan plan = plan_lanes(settings, batch, bytes);
  const std::vector<ChunkRange> ranges = chunk_ranges(batch, plan.max_batch_size);
  std::vector<at::Tensor> drawn(ranges.size());
  std::mutex mutex;
  std::exception_ptr cause;  // why the lanes end early
  std::atomic<bool> ends = false;
  const auto draw_chunk = [&](int64_t lane, size_t i) {
    Options own = on_device(chunk_of(options, ranges[i]), device);
    // Lane 0 tells how far all are, and may be told to stop: then the others end, too.
    own.on_step = [&ends, lane, told = own.on_step](const auto&... step) {
      if (ends) throw std::runtime_error("another lane has ended");
      if (lane == 0 && told) told(step...);
    };
    try {
      drawn[i] = draw(own);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
      ends = true;
    }
  };
  in_lanes(plan.lanes, ranges.size(), draw_chunk);
  if (cause) std::rethrow_exception(cause);
  return at::cat(drawn);
}

}  // namespace dalle2
