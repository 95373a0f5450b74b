// SPDX-License-Identifier: MIT
// A whole training file of a VQGAN-VAE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/kinds.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"
#include "config/vae/vae_config.h"

namespace dalle2 {

struct VaeDataConfig : PictureReadConfig {
  static constexpr const char* kDoc =
      "Where the pictures come from: a local folder, its subfolders, and uncompressed tar shards "
      "in them. Files and members named jpg, jpeg, png or webp are taken in the order of their "
      "paths; those that cannot be read are left out and counted.";

  std::string folder;      // required
  int64_t image_size = 0;  // required
  int64_t batch_size = 0;  // required
  double valid_frac = 0.05;
  int64_t random_split_seed = 42;
  int64_t num_workers = 4;
  std::optional<std::vector<TransformConfig>> preprocessing;

  void fields(auto& f) {
    D2_REQUIRED(folder, "Folder of the pictures and tar shards.", not_empty());
    D2_REQUIRED(image_size, "Side of the pictures in pixels.", within(1, most::kImageSide));
    D2_REQUIRED(batch_size, "Pictures per step and process.", within(1, most::kBatch));
    D2_FIELD(valid_frac,
             "Fraction of the pictures for validation; 0 validates with the training pictures.",
             at_least(0).below(1));
    D2_FIELD(random_split_seed, "Seed of the random split of the pictures.", at_least(0));
    D2_FIELD(
        num_workers,
        "Threads that read and decode the next batch, per process; 0 reads in the main thread. The "
        "pictures stay the same.",
        within(0, most::kThreads));
    D2_FIELD(preprocessing,
             "Transforms, named as in torchvision. Null: `Resize` to `image_size`, then "
             "`RandomHorizontalFlip`, then `CenterCrop` to `image_size`.");
    PictureReadConfig::fields(f);
  }
};

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
    D2_REQUIRED(
        num_train_steps,
        "Steps of the run. Each updates the autoencoder and, with `vae.use_vgg_and_gan`, the "
        "discriminator.",
        within(1, most::kSteps));
    D2_FIELD(
        discr_max_grad_norm, "`max_grad_norm` of the discriminator; null for no limit.", above(0));
    D2_FIELD(discr_start_step,
             "Steps before the discriminator is trained and the adversarial loss counts.",
             within(0, most::kSteps));
    D2_FIELD(apply_grad_penalty_every,
             "Steps between two gradient penalties of the discriminator; 0 for none.",
             within(0, most::kSteps));
    D2_FIELD(save_results_every,
             "Steps between two grids of reconstructions, logged with the validation losses.",
             within(1, most::kSteps));
    D2_FIELD(
        save_model_every,
        "Steps between two saves of `vae.N.pt`, `vae.N.ema.pt` and the latest checkpoint; the last "
        "step saves too.",
        within(1, most::kSteps));
    D2_FIELD(results_folder,
             "Folder for the grids, `vae.N.pt` and `vae.N.ema.pt`. Null: `results` in "
             "`tracker.data_path`.",
             not_empty());
    D2_FIELD(
        vgg_path,
        "TorchScript file of the network of the perceptual loss, from `scripts/export_vgg.py`. "
        "Needed with `vae.use_vgg_and_gan`.",
        not_empty());
    D2_FIELD(validation_samples,
             "Validation pictures for the mean loss in the log, at most.",
             within(1, most::kSamples));
  }
};

struct VaeTrainConfig : OptimizerConfig<Single>, SharedTrainConfig, VaeOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. A run ends after `num_train_steps` or `epochs`.";

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

struct TrainVaeConfig : RootConfig {
  static constexpr const char* kDoc = "A file that trains a VQGAN-VAE.";
  static constexpr const char* kKind = "vae";
  static FormatFields placeholders() {
    return {{"epoch", int64_t{0}}, {"step", int64_t{0}}, {"samples_seen", int64_t{0}}};
  }

  VaeConfig vae;
  VaeDataConfig data;
  VaeTrainConfig train;

  void fields(auto& f) {
    D2_REQUIRED(vae, "The model.");
    D2_REQUIRED(data, "The pictures.");
    D2_REQUIRED(train, "The optimisation.");
    RootConfig::fields(f);
  }
};

using LoadedVaeConfig = Loaded<TrainVaeConfig>;

LoadedVaeConfig parse_vae_config(const std::string& json,
                                 const std::string& origin,
                                 const ReadOptions& options);

}  // namespace dalle2
