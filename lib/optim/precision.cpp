// SPDX-License-Identifier: MIT
#include "optim/precision.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/torch.h>

#include "kernels/cpu_algorithms.h"

namespace dalle2 {
namespace {

bool cpu_has_bfloat16() {
  return cpu_has("avx512_bf16") || cpu_has("amx_bf16") || cpu_has("bf16");
}

}  // namespace

HalfPrecisionSupport half_precision_support(const at::Device& device) {
  if (device.is_cpu()) {
    return {.is_gpu = false, .bfloat16 = cpu_has_bfloat16()};
  }
  // The hook asks the current device for compute capability 8.0.
  const c10::DeviceGuard on_device(device);
  return {.is_gpu = true,
          .bfloat16 = at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8()};
}

PrecisionChoice choose_precision(std::optional<MixedPrecision> asked,
                                 bool amp,
                                 const HalfPrecisionSupport& support) {
  if (asked) {
    const bool half = *asked != MixedPrecision::no;
    return {*asked, half ? "/train/mixed_precision" : ""};
  }
  if (!amp) {
    const bool is_slow = support.is_gpu && support.bfloat16;
    return {MixedPrecision::no,
            is_slow ? "this GPU has tensor cores for bfloat16, and /train/amp is false" : ""};
  }
  if (support.bfloat16) {
    return {MixedPrecision::bf16, "/train/amp: this device has bfloat16 instructions"};
  }
  if (support.is_gpu) {
    return {MixedPrecision::fp16, "/train/amp: this GPU is older than bfloat16 (before Ampere)"};
  }
  return {MixedPrecision::no,
          "/train/amp: this CPU has no bfloat16 instructions, full precision is faster"};
}

GradScaler::GradScaler(const at::Device& device, const GradScalerOptions& options)
    : options_(options),
      scale_(at::full({}, options.init_scale, at::device(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::device(device).dtype(at::kInt))) {}

void GradScaler::update(const at::Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_,
                         growth_tracker_,
                         found_inf,
                         options_.growth_factor,
                         options_.backoff_factor,
                         options_.growth_interval);
}

void GradScaler::set_state(double scale, int64_t growth_tracker) {
  const torch::NoGradGuard no_grad;
  scale_.fill_(scale);
  growth_tracker_.fill_(growth_tracker);
}

}  // namespace dalle2
