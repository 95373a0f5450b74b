// SPDX-License-Identifier: MIT
// The network whose features the perceptual loss of a VAE compares.
#pragma once

#include <c10/core/Device.h>

#include "config/vae/vae_run_config.h"
#include "model/vae/vqgan_vae.h"

namespace dalle2 {

/// Opens /train/vgg_path and tries it; null without vae.use_vgg_and_gan.
/// @throws ConfigError if it is not a network that gives features [B, F] of such pictures
ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device);

}  // namespace dalle2
