// SPDX-License-Identifier: MIT
// DREAM: Diffusion Rectification and Estimation-Adaptive Models (Zhou et al. 2024, algorithm 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "config/shared/loss_config.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// What a training step shows the network, and what it should answer.
struct TrainingPair {
  at::Tensor x_t;     ///< [B, C, H, W]
  at::Tensor target;  ///< [B, C, H, W]
};

/// The network's prediction at x_t, without the half of a learned variance. [B, C, H, W] -> [B, C,
/// H, W]
using Predictor = std::function<at::Tensor(const at::Tensor& x_t)>;

class Dream {
 public:
  /// @throws ConfigError if it is enabled for an objective other than noise prediction
  Dream(const DreamConfig& config, Objective objective);
  /// The pair with the network's own error in both: with lambda = sqrt(1 - acp)^p and d = lambda *
  /// (noise - prediction), x_t + sqrt(1 - acp) d and target + d. `predict` is called once, without
  /// gradients; with DREAM switched off it is not called, and the pair stays as it is.
  /// @param noise [B, C, H, W] that the target holds; @param t [B] int64
  TrainingPair rectify(const NoiseScheduleImpl& schedule,
                       const TrainingPair& pair,
                       const at::Tensor& t,
                       const at::Tensor& noise,
                       const Predictor& predict) const;

 private:
  DreamConfig config_;
};

}  // namespace dalle2
