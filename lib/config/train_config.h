// SPDX-License-Identifier: MIT
// `train` of a decoder config (config.md, section 5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/types.h"

namespace dalle2 {

struct DecoderTrainConfig {
  int64_t epochs = 20;
  OneOrMany<double> lr = 1e-4;
  OneOrMany<double> wd = 0.01;
  std::optional<OneOrMany<std::optional<int64_t>>> warmup_steps;
  bool find_unused_parameters = true;
  bool static_graph = true;
  OneOrMany<double> max_grad_norm = 0.5;
  int64_t save_every_n_samples = 100000;
  int64_t n_sample_images = 6;
  OneOrMany<double> cond_scale = 1.0;
  std::string device = "cuda:0";
  std::optional<int64_t> epoch_samples;
  std::optional<int64_t> validation_samples;
  bool save_immediately = false;
  bool use_ema = true;
  double ema_beta = 0.999;
  bool amp = false;
  std::optional<std::vector<bool>> unet_training_mask;
  // Keys that the reference's trainer class has and its config drops.
  OneOrMany<double> eps = 1e-8;
  std::vector<double> betas = {0.9, 0.99};
  bool group_wd_params = true;
  std::optional<OneOrMany<std::optional<int64_t>>> cosine_decay_max_steps;
  int64_t ema_update_after_step = 100;
  int64_t ema_update_every = 10;
  double ema_inv_gamma = 1.0;
  double ema_power = 2.0 / 3.0;
  double ema_min_value = 0.0;
  std::optional<int64_t> max_batch_size;  ///< chunk of a batch that goes through the unet at once
};

}  // namespace dalle2
