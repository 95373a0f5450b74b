// SPDX-License-Identifier: MIT
#include "optim/precision.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/torch.h>

#include <array>

#include "kernels/cpu_algorithms.h"

namespace dalle2 {
namespace {

bool is_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

bool cpu_has_bfloat16() {
  return cpu_has("avx512_bf16") || cpu_has("amx_bf16") || cpu_has("bf16");
}

}  // namespace

HalfPrecisionSupport half_precision_support(const at::Device& device) {
  if (device.is_cpu()) return {.is_gpu = false, .bfloat16 = cpu_has_bfloat16()};
  // The hook asks the current device for compute capability 8.0.
  const c10::DeviceGuard on_device(device);
  return {.is_gpu = true,
          .bfloat16 = at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8()};
}

PrecisionChoice choose_precision(std::optional<MixedPrecision> asked,
                                 bool amp,
                                 const HalfPrecisionSupport& support) {
  if (asked) {
    const bool is_slow = *asked == MixedPrecision::bf16 && !support.is_gpu && !support.bfloat16;
    if (is_slow)
      return {*asked, "this CPU has no bfloat16 instructions: \"no\" is several times faster"};
    return {*asked, *asked != MixedPrecision::no ? "/train/mixed_precision" : ""};
  }
  if (!amp) {
    const bool is_slow = support.is_gpu && support.bfloat16;
    return {MixedPrecision::no,
            is_slow ? "this GPU has tensor cores for bfloat16, and /train/amp is false" : ""};
  }
  if (support.bfloat16)
    return {MixedPrecision::bf16, "/train/amp: this device has bfloat16 instructions"};
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

void use_tf32(Tf32 where) {
  at::Context& context = at::globalContext();
  const bool products = where == Tf32::all, convolutions = where != Tf32::no;
  // The older switch of products has to agree with the newer one, or LibTorch refuses to multiply.
  if (is_tf32(at::Float32Op::MATMUL) != products) context.setAllowTF32CuBLAS(products);
  context.setFloat32Precision(
      at::Float32Backend::CUDA,
      at::Float32Op::CONV,
      convolutions ? at::Float32Precision::TF32 : at::Float32Precision::IEEE);
}

Tf32 tf32_in_use() {
  if (is_tf32(at::Float32Op::MATMUL)) return Tf32::all;
  return is_tf32(at::Float32Op::CONV) ? Tf32::convolutions : Tf32::no;
}

std::string tf32_text(Tf32 where, const at::Device& device) {
  if (device.is_cpu()) return "";
  constexpr std::array kTexts = {
      "no TF32", "TF32 in convolutions", "TF32 in convolutions and matrix products"};
  return kTexts[static_cast<size_t>(where)];
}

}  // namespace dalle2
