// SPDX-License-Identifier: MIT
// Asks a stage's network for the clean image while sampling: guidance and clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "diffusion/noise_schedule.h"
#include "diffusion/sampler.h"
#include "model/unet/unet.h"

namespace dalle2 {

/// Brings a guided prediction back to the spread of the conditional one (Lin et al. 2023, eq.
/// 15-16).
/// @param share 0 keeps `guided`, 1 takes the rescaled one whole
at::Tensor rescale_guidance(const at::Tensor& guided, const at::Tensor& conditional, double share);

struct DenoiserOptions {
  double cond_scale = 1.0;
  double cfg_rescale = 0.0;
  bool learned_variance = false;
  std::function<at::Tensor(const at::Tensor&)> threshold;  ///< clips x_start; none: not
  DdimLayout ddim = {};
};

class Denoiser {
 public:
  Denoiser(std::shared_ptr<UnetImpl> unet,
           NoiseSchedule schedule,
           PredictionTarget target,
           UnetConditions conditions,
           DenoiserOptions options);

  /// @param x [B, C, H, W]; @param times [B] int64
  /// @param self_cond the clean image of the step before; undefined at the first step
  Denoised operator()(const at::Tensor& x, const at::Tensor& times, const at::Tensor& self_cond);

  /// True if the network wants the clean image of the step before.
  bool uses_self_cond() const { return unet_->config().self_cond; }

 private:
  at::Tensor guided_output(const at::Tensor& x,
                           const at::Tensor& times,
                           const UnetConditions& conditions);

  std::shared_ptr<UnetImpl> unet_;
  NoiseSchedule schedule_;
  PredictionTarget target_;
  UnetConditions conditions_;
  DenoiserOptions options_;
};

}  // namespace dalle2
