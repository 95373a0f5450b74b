// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include <cstdio>

#include "base/text.h"
#include "model/random.h"
#include "run/dry_run.h"
#include "run/vae/vae_features.h"
#include "run/vae/vae_run.h"

namespace dalle2 {
namespace {

at::Tensor made_up_images(const TrainVaeConfig& config, int64_t batch) {
  const int64_t side = config.data.image_size;
  return at::rand({batch, config.vae.channels, side, side},
                  make_generator({.purpose = "dry run"}, at::kCPU));
}

DryRunPlan make_plan(const LoadedVaeConfig& loaded) {
  const TrainVaeConfig& config = loaded.config;
  VqganVae vae(config.vae);
  const ImageFeatures features = perceptual_features(config, at::kCPU);
  const auto generator = [] { return make_generator({.purpose = "dry run"}, at::kCPU); };
  DryRunPlan plan{.model = vae.ptr(), .batch_size = config.data.batch_size};
  plan.networks.push_back({.label = "autoencoder",
                           .note = fmt::format("{} px", config.data.image_size),
                           .module = vae->autoencoder(),
                           .step = [=](int64_t batch) mutable {
                             vae->autoencoder_losses(
                                    made_up_images(config, batch), features, generator())
                                 .total.backward();
                           }});
  if (vae->discriminator()) {
    plan.networks.push_back(
        {.label = "discriminator",
         .note = "",
         .prefix = "discr.",
         .module = vae->discriminator(),
         .step = [=](int64_t batch) mutable {
           vae->discriminator_loss(made_up_images(config, batch), generator()).backward();
         }});
  }
  plan.is_begun_by = is_vae_weights_alone;
  plan.texts = config_texts(loaded);
  return plan;
}

}  // namespace

void dry_run(const LoadedVaeConfig& loaded, int64_t processes) {
  const TrainVaeConfig& config = loaded.config;
  check_results_folder(config);
  const ImageFolder data(config.data, config.vae.channels, config.seed);
  data.check_usable();
  DryRunPlan plan = make_plan(loaded);
  plan.data_size = {data.files(), "picture"};
  VaePosition position;
  const at::Device device = check_start(plan, config.tracker, config.train, position);
  print_networks(plan, config.train);
  for (const char* split : {"train", "val"}) {
    std::printf("%s: %s\n", split, counted(data.rows(split), "picture").c_str());
  }
  print_pictures(data.first_pictures(),
                 decode_options(config.data, /*turns_by_default=*/false, config.vae.channels));
  std::printf("steps: %s\n", with_commas(config.train.num_train_steps).c_str());
  print_sizes(plan, config.train, device, processes);
}

}  // namespace dalle2
