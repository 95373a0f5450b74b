// SPDX-License-Identifier: MIT
// How a VAE's run is made and opened.
#include <torch/torch.h>

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/folder_names.h"
#include "io/files/writable.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/vae/vae_features.h"
#include "run/vae/vae_run.h"

namespace dalle2 {
namespace {

std::unique_ptr<VaeTrainer> make_trainer(const LoadedVaeConfig& loaded, const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  ImageFeatures features = perceptual_features(loaded.config, device);
  VqganVae vae(loaded.config.vae);
  auto trainer =
      std::make_unique<VaeTrainer>(vae, loaded.config.train, std::move(features), device);
  log_parameters(count_parameters(*vae));
  return trainer;
}

}  // namespace

void check_results_folder(const TrainVaeConfig& config) {
  if (!config.train.results_folder) return;  // the tracker looks at its own
  const std::string& results = *config.train.results_folder;
  // What a run draws in its data_path is known as such; elsewhere the next start would take it for data.
  const std::filesystem::path own =
      std::filesystem::path(config.tracker.data_path) / kResultsFolder;
  const std::filesystem::path canonical = canonical_folder(results);
  if (!is_in_folder(canonical, canonical_folder(own)) &&
      is_in_folder(canonical, canonical_folder(config.data.folder))) {
    throw ConfigError(
        "/train/results_folder '{}' is in /data/folder '{}': the next start would train on what this one "
        "draws\n  Choose a folder elsewhere, or null for {}.",
        results,
        config.data.folder,
        own.string());
  }
  const std::optional<std::string> why = why_not_writable(results);
  if (!why) return;
  throw ConfigError(
      "/train/results_folder: {}\n  Choose another folder, or make that place writable for this user.",
      *why);
}

/// The folder is looked at before anything is made.
static RunPlan checked_plan(const LoadedVaeConfig& loaded, const RunProcess& process) {
  check_results_folder(loaded.config);
  return run_plan(loaded,
                  process,
                  vae_metric_names(loaded.config.vae),
                  "pictures that are not like the others, and a learning rate that is too high");
}

VaeRun::VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process)
    : TrainingRun(checked_plan(loaded, process),
                  std::make_unique<VaePosition>(),
                  [&](const at::Device& device) { return make_trainer(loaded, device); }),
      config_(loaded.config),
      data_(config_.data, config_.vae.channels, config_.seed, gpu_of(session_.device())),
      position_(position_as<VaePosition>()),
      trainer_(trainer_as<VaeTrainer>()) {
  position_.rows = data_.rows("train");
  if (config_.train.results_folder)
    session_.tracker().add_folder(*config_.train.results_folder, "/train/results_folder");
  ProcessGroup& group = session_.group();
  if (group.is_alone()) return;
  trainer_.vae()->quantizer()->set_ranks(
      {.rank = group.rank(),
       .size = group.size(),
       .sum = [&group](at::Tensor& tensor) { group.all_reduce(tensor, Reduction::kSum, "codes"); },
       .exchange =
           [&group](int64_t own) {
             std::vector<int64_t> all;
             for (const auto& row : group.exchange({own}, "vectors for codes"))
               all.push_back(row[0]);
             return all;
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
  session_.check_same_data(data_.names(), "pictures", "/data/folder");
  data_.check_usable();
  checkpoints_.set_data_size({data_.files(), "picture"});
}

}  // namespace dalle2
