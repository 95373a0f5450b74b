// SPDX-License-Identifier: MIT
// How a VAE's run is made and opened.
#include <torch/torch.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/writable.h"
#include "run/checkpoints/model_weights.h"
#include "run/vae/vae_features.h"
#include "run/vae/vae_run.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

std::unique_ptr<VaeTrainer> make_trainer(const LoadedVaeConfig& loaded, const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  ImageFeatures features = perceptual_features(loaded.config, device);
  VqganVae vae(loaded.config.vae);
  auto trainer =
      std::make_unique<VaeTrainer>(vae, loaded.config.train, std::move(features), device);
  const ParameterCount count = count_parameters(*vae);
  log_info("model", "Number of parameters: {} total; {} training", count.total, count.training);
  return trainer;
}

}  // namespace

void check_results_folder(const TrainVaeConfig& config) {
  if (!config.train.results_folder) return;  // the tracker looks at its own
  const std::optional<std::string> why = why_not_writable(*config.train.results_folder);
  if (!why) return;
  throw ConfigError(
      "/train/results_folder: {}\n  Choose another folder, or make that place writable for this user.",
      *why);
}

/// Before anything is made.
static SessionOptions checked_options(const LoadedVaeConfig& loaded, const RunProcess& process) {
  check_results_folder(loaded.config);
  return session_options(loaded, process);
}

VaeRun::VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process)
    : TrainingRun({.session = checked_options(loaded, process),
                   .texts = {.kind = "vae",
                             .raw_json = loaded.raw_json,
                             .full_json = public_config(loaded.full_json)},
                   .metrics = vae_metric_names(loaded.config.vae),
                   .suspects = "pictures that are not like the others, and a learning rate that is "
                               "too high"},
                  std::make_unique<VaePosition>(),
                  [&](const at::Device& device) { return make_trainer(loaded, device); }),
      config_(loaded.config),
      data_(config_.data, config_.vae.channels, config_.seed),
      position_(position_as<VaePosition>()),
      trainer_(trainer_as<VaeTrainer>()) {
  ProcessGroup& group = session_.group();
  if (group.is_alone()) return;
  trainer_.vae()->quantizer()->set_ranks(
      {.rank = group.rank(), .size = group.size(), .sum = [&group](at::Tensor& tensor) {
         group.all_reduce(tensor, Reduction::kSum, "codes");
       }});
}

void VaeRun::open() {
  session_.print_precision(trainer_.precision());
  log_info("data",
           "pictures: {} train, {} val; batches of {}{}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           config_.data.batch_size,
           of_each_rank(session_.group()));
  checkpoints_.set_data_size({data_.files(), "picture"});
}

}  // namespace dalle2
