// SPDX-License-Identifier: MIT
#include "kernels/flat_update.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include "base/error.h"
#include "kernels/cpu_algorithms.h"

namespace dalle2 {
namespace {

constexpr int64_t kUpdateGrain = 1 << 15;  // elements

float* floats_of(const at::Tensor& tensor, int64_t n) {
  if (!tensor.defined()) return nullptr;
  D2_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
               tensor.numel() == n,
           "a stretch of {} floats is {} of {}",
           n,
           c10::str(tensor.sizes()),
           c10::toString(tensor.scalar_type()));
  return tensor.data_ptr<float>();
}

}  // namespace

void adam_update_(const loops::AdamStep& step, const AdamStretch& stretch) {
  RECORD_USER_SCOPE_WITH_INPUTS("dalle2::adam_update_",
                                std::vector<c10::IValue>({stretch.grads,
                                                          stretch.weights,
                                                          stretch.exp_avg,
                                                          stretch.exp_avg_sq,
                                                          stretch.average,
                                                          stretch.halves}));
  const int64_t n = stretch.weights.numel();
  D2_CHECK(n % kUpdateLanes == 0, "a stretch of {} floats", n);
  float* const weights = floats_of(stretch.weights, n);
  const float* const grads = floats_of(stretch.grads, n);
  float* const exp_avg = floats_of(stretch.exp_avg, n);
  float* const exp_avg_sq = floats_of(stretch.exp_avg_sq, n);
  float* const average = floats_of(stretch.average, n);
  loops::Half* halves = nullptr;
  if (stretch.halves.defined()) {
    D2_CHECK(stretch.halves.scalar_type() == at::kBFloat16 && stretch.halves.numel() == n,
             "halves of another shape or type");
    halves = static_cast<loops::Half*>(stretch.halves.data_ptr());
  }
  const auto& update = loops::best().flat_update.adam;
  at::parallel_for(
      0, n / kUpdateLanes, kUpdateGrain / kUpdateLanes, [&](int64_t begin, int64_t end) {
        const int64_t at = begin * kUpdateLanes;
        update(step,
               {weights + at,
                grads + at,
                exp_avg + at,
                exp_avg_sq + at,
                average != nullptr ? average + at : nullptr,
                halves != nullptr ? halves + at : nullptr},
               (end - begin) * kUpdateLanes);
      });
}

void copy_from_half_(const at::Tensor& to, const at::Tensor& from) {
  constexpr int64_t kFewest = 1 << 14;  // smaller ones fit into a cache
  constexpr uintptr_t kAlignment = 64;
  const bool fits = uses_cpu_algorithms(to.device()) && from.scalar_type() == at::kBFloat16 &&
                    to.scalar_type() == at::kFloat && to.numel() >= kFewest &&
                    to.numel() % kUpdateLanes == 0 && to.sizes() == from.sizes() &&
                    to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
                    reinterpret_cast<uintptr_t>(to.const_data_ptr()) % kAlignment == 0;
  if (!fits) {
    to.copy_(from);
    return;
  }
  RECORD_USER_SCOPE_WITH_INPUTS("dalle2::copy_from_half_", std::vector<c10::IValue>({to, from}));
  const auto* const x = static_cast<const loops::Half*>(from.const_data_ptr());
  float* const y = to.data_ptr<float>();
  at::parallel_for(
      0, to.numel() / kUpdateLanes, kUpdateGrain / kUpdateLanes, [&](int64_t begin, int64_t end) {
        const int64_t at = begin * kUpdateLanes;
        loops::best().flat_update.widen((end - begin) * kUpdateLanes, x + at, y + at);
      });
}

}  // namespace dalle2
