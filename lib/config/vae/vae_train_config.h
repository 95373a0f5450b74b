// SPDX-License-Identifier: MIT
// `train` of a VQGAN-VAE config: the arguments of muse's VQGanVAETrainer by their names, and what
// all kinds of run have.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "config/reading/count_limits.h"
#include "config/shared/train_options.h"

namespace dalle2 {

/// What only a VAE has.
struct VaeOnlyTrainConfig {
  int64_t num_train_steps = 0;  // required
  std::optional<double> discr_max_grad_norm;
  int64_t discr_start_step = 0;
  int64_t apply_grad_penalty_every = 4;
  int64_t save_results_every = 100;
  int64_t save_model_every = 1000;
  std::optional<std::string> results_folder;
  std::optional<std::string> vgg_path;
  int64_t validation_samples = 256;

  void fields(auto& f) {
    D2_REQUIRED(num_train_steps, "Steps of the run.", within(1, most::kSteps));
    D2_FIELD(
        discr_max_grad_norm, "`max_grad_norm` of the discriminator; null for never.", above(0));
    D2_FIELD(discr_start_step,
             "Steps before the discriminator is trained and its loss counts.",
             within(0, most::kSteps));
    D2_FIELD(apply_grad_penalty_every,
             "Steps between two with the gradient penalty of the discriminator; 0 for none.",
             within(0, most::kSteps));
    D2_FIELD(save_results_every,
             "Steps between two grids of reconstructions, and losses of the validation pictures.",
             within(1, most::kSteps));
    D2_FIELD(
        save_model_every,
        "Steps between two `vae.N.pt`, `vae.N.ema.pt` and the latest checkpoint; the last step has "
        "them, too.",
        within(1, most::kSteps));
    D2_FIELD(results_folder,
             "Where the grids and these files go. Null: `results` in tracker.data_path.",
             not_empty());
    D2_FIELD(vgg_path,
             "TorchScript of the network whose features the perceptual loss compares: "
             "`scripts/export_vgg.py` makes it. Needed with `vae.use_vgg_and_gan`.",
             not_empty());
    D2_FIELD(validation_samples,
             "Validation pictures whose mean loss is logged, at most.",
             within(1, most::kSamples));
  }
};

struct VaeTrainConfig : OptimizerConfig<Single>, SharedTrainConfig, VaeOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. A run ends after `num_train_steps`, or after `epochs` if they "
      "are over before.";

  VaeTrainConfig() {
    lr = 3e-4;
    wd = 0.0;
    betas = {0.9, 0.999};
    max_grad_norm = std::nullopt;
    epochs = static_cast<int64_t>(most::kEpochs);
    ema_beta = 0.995;
    ema_update_after_step = 0;
    ema_update_every = 1;
  }

  void fields(auto& f) {
    OptimizerConfig::fields(f);
    SharedTrainConfig::fields(f);
    VaeOnlyTrainConfig::fields(f);
  }
};

}  // namespace dalle2
