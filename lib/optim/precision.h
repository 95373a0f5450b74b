// SPDX-License-Identifier: MIT
// The arithmetic in which networks compute while they are trained.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <optional>
#include <string>

#include "config/reading/reflect.h"
#include "kernels/autocast_state.h"

namespace dalle2 {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< updates without an overflow before the scale grows
};

/// Dynamic loss scaling for fp16 (Micikevicius et al. 2018), equal to torch.amp.GradScaler. The loss is multiplied by the scale, so that small gradients do not vanish in fp16; the
/// gradients have to be divided by it. Scale and count lie on the device: nothing waits for them.
class GradScaler {
 public:
  explicit GradScaler(const at::Device& device, const GradScalerOptions& options = {});

  /// [] float32 on the device. It changes in place: use it before the next update().
  const at::Tensor& scale() const { return scale_; }
  /// Call once for each update. @param found_inf [] float32: 1 if a gradient overflowed, else 0.
  /// An overflow lowers the scale; growth_interval updates without one raise it, to a finite value.
  void update(const at::Tensor& found_inf);

  const GradScalerOptions& options() const { return options_; }
  /// The scale as a number. Waits for the device.
  double current_scale() const { return scale_.item<double>(); }
  /// Updates since the last overflow or growth. Waits for the device.
  int64_t growth_tracker() const { return growth_tracker_.item<int64_t>(); }
  void set_state(double scale, int64_t growth_tracker);

 private:
  GradScalerOptions options_;
  at::Tensor scale_;           // [] float32
  at::Tensor growth_tracker_;  // [] int32
};

/// Matrix products and convolutions of this thread are computed in half precision for as long as the object lives; what
/// needs more digits (norms, losses, sums) stays in float32, as torch.autocast decides. Run the backward pass outside:
/// it follows the forward pass by itself. Does nothing for `no`.
class Autocast {
 public:
  Autocast(at::DeviceType device, MixedPrecision precision) {
    if (precision == MixedPrecision::no) return;
    state_.emplace(device, true, precision == MixedPrecision::fp16 ? at::kHalf : at::kBFloat16);
  }

 private:
  std::optional<AutocastState> state_;
};

struct PrecisionChoice {
  MixedPrecision precision = MixedPrecision::no;
  std::string reason;  ///< for people; empty where there is nothing to say
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

// TF32, the short float32 of NVIDIA's GPUs since Ampere: its products have 10 bits of mantissa in the
// place of 23 and are several times as fast. The setting is the process's; the CPU knows none.

/// From now on float32 on CUDA is TF32 there.
void use_tf32(Tf32 where);
/// What is set.
Tf32 tf32_in_use();
/// "TF32 in convolutions", for people. Empty for the CPU.
std::string tf32_text(Tf32 where, const at::Device& device);

/// As long as it lives, float32 is float32 on CUDA: TF32 moves a feature of a network by 1e-3. Not for two
/// threads at once.
class PlainFloat32 {
 public:
  PlainFloat32() : earlier_(tf32_in_use()) { use_tf32(Tf32::no); }
  ~PlainFloat32() { use_tf32(earlier_); }
  PlainFloat32(const PlainFloat32&) = delete;
  PlainFloat32& operator=(const PlainFloat32&) = delete;

 private:
  Tf32 earlier_;
};

}  // namespace dalle2
