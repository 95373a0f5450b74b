// SPDX-License-Identifier: MIT
#include "run/peak_memory.h"

#include <torch/types.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

#include "base/this_process.h"
#include "run/checkpoints/model_weights.h"

namespace dalle2 {
namespace {

/// Bytes of the tensors that this thread makes while it is looked at.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/,
                         int64_t bytes,
                         size_t /*total_allocated*/,
                         size_t /*total_reserved*/,
                         c10::Device /*device*/) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

int64_t peak_of_step(const DryRunPlan::Network& network, int64_t batch) {
  const auto bytes = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  network.step(batch);
  sign_of_life();  // other ranks may wait for this one
  return bytes->peak();
}

/// What a step of `batch` samples holds besides the weights and their gradients, which a run keeps
/// from step to step. The peak grows by the sample once activations decide it: below that it is the
/// same.
int64_t bytes_of_batch(const DryRunPlan::Network& network, int64_t batch) {
  constexpr int64_t kMostTried = 32;
  // Makes the gradients, and what the network keeps of its last batch. This step is looked at too: LibTorch warns
  // of memory that is given back later and of which it does not know the size.
  peak_of_step(network, 1);
  int64_t size = 1, peak = peak_of_step(network, size), per_sample = 0;
  for (bool is_line = false; size < batch && size < kMostTried && !is_line; size *= 2) {
    const int64_t next = peak_of_step(network, 2 * size);
    // A stretch that begins flat and ends rising is no measure of the rise.
    is_line = next > peak && (size == 1 || per_sample > 0);
    per_sample = std::max<int64_t>(next - peak, 0) / size;
    peak = next;
  }
  network.module->zero_grad();
  return peak + std::max<int64_t>(batch - size, 0) * per_sample;
}

}  // namespace

int64_t average_copies(const SharedTrainConfig& train) {
  return (train.use_ema ? 1 : 0) + (train.post_hoc_ema.save_every_n_steps
                                        ? static_cast<int64_t>(train.post_hoc_ema.sigmas.size())
                                        : 0);
}

uint64_t activation_bytes(const DryRunPlan::Network& network,
                          const DryRunPlan& plan,
                          const SharedTrainConfig& train) {
  const int64_t batch = std::min(plan.batch_size, train.max_batch_size.value_or(plan.batch_size));
  return static_cast<uint64_t>(bytes_of_batch(network, batch));
}

uint64_t PeakMemory::peak() const {
  uint64_t most = 0;
  for (const uint64_t bytes : activation_bytes) most = std::max(most, bytes);
  return kept_bytes + most;
}

PeakMemory peak_memory(const DryRunPlan& plan, const SharedTrainConfig& train, bool on_cpu) {
  const ParameterBytes parameters = parameter_bytes(*plan.model);
  const uint64_t program = process_memory("VmRSS") - static_cast<uint64_t>(parameters.all);
  const uint64_t code = process_memory("RssFile");
  PeakMemory found;
  for (const DryRunPlan::Network& network : plan.networks) {
    found.activation_bytes.push_back(network.module ? activation_bytes(network, plan, train) : 0);
  }
  const uint64_t more_code = std::max(process_memory("RssFile"), code) - code;  // that steps load
  const bool offloads = train.use_ema && train.ema.offload && !on_cpu;
  const int64_t averages = average_copies(train) - (offloads ? 1 : 0);
  // Each network's weights stay in half precision, too (optim/half_weights.h), if steps compute in it.
  const bool is_half =
      train.mixed_precision ? *train.mixed_precision != MixedPrecision::no : train.amp;
  const int64_t halves = is_half && !train.shard_optimizer ? parameters.trained / 2 : 0;
  const int64_t state = parameters.all + (3 + averages) * parameters.trained + halves;
  // Saving in the background holds a checkpoint and a model file besides.
  const int64_t saved =
      on_cpu && train.async_save ? 2 * parameters.all + (2 + averages) * parameters.trained : 0;
  found.kept_bytes = (on_cpu ? program + more_code : 0) + static_cast<uint64_t>(state + saved);
  return found;
}

}  // namespace dalle2
