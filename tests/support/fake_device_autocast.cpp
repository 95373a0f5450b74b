// SPDX-License-Identifier: MIT
// Autocast of the fake device, with the operations that CUDA's has.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#define DALLE2_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define DALLE2_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define DALLE2_FLOAT32_OPTION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DALLE2_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

namespace at::autocast {  // the lists name functions of at

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(DALLE2_LOWER_PRECISION)
  AT_FORALL_FP32(DALLE2_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DALLE2_FLOAT32_OPTION)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(DALLE2_PROMOTE)
}

}  // namespace at::autocast
