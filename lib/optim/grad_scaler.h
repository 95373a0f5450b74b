// SPDX-License-Identifier: MIT
// Dynamic loss scaling for fp16 (Micikevicius et al. 2018), equal to torch.amp.GradScaler.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< updates without an overflow before the scale grows
};

/// The loss is multiplied by the scale, so that small gradients do not vanish in fp16; the
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
  double current_scale() const;
  /// Updates since the last overflow or growth. Waits for the device.
  int64_t growth_tracker() const;
  void set_state(double scale, int64_t growth_tracker);

 private:
  GradScalerOptions options_;
  at::Tensor scale_;           // [] float32
  at::Tensor growth_tracker_;  // [] int32
};

}  // namespace dalle2
