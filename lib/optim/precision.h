// SPDX-License-Identifier: MIT
// The arithmetic in which networks compute while they are trained.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "config/reading/types.h"

namespace dalle2 {

/// Matrix products and convolutions of this thread are computed in half precision for as long as
/// the object lives; what needs more digits (norms, losses, sums) stays in float32, as
/// torch.autocast decides. Run the backward pass outside: it follows the forward pass by itself.
/// Does nothing for `no`.
class Autocast {
 public:
  Autocast(at::DeviceType device, MixedPrecision precision);
  /// Restores the earlier state; weights that were cast are forgotten, since the next update
  /// changes them.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool active_;
  bool was_enabled_ = false;
  at::ScalarType earlier_dtype_ = at::kFloat;
};

struct PrecisionChoice {
  MixedPrecision precision = MixedPrecision::no;
  std::string reason;  ///< for people; empty where nothing was asked for
};

/// What the hardware computes natively.
struct HalfPrecisionSupport {
  bool is_gpu = false;
  bool bfloat16 = false;
};
HalfPrecisionSupport half_precision_support(const at::Device& device);

/// `asked` if given, else what `amp` chooses for the device: bf16 where it is native, fp16 on other
/// GPUs, and full precision on other CPUs, where both are slower than float32.
PrecisionChoice choose_precision(std::optional<MixedPrecision> asked,
                                 bool amp,
                                 const HalfPrecisionSupport& support);

}  // namespace dalle2
