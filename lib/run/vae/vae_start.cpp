// SPDX-License-Identifier: MIT
// How a VAE's run is made and opened, what `--dry-run` says of it, and the first config of `init`.
#include <ATen/Context.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/folder_names.h"
#include "io/files/writable.h"
#include "metrics/script/script_archive.h"
#include "model/random.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/dry_run.h"
#include "run/init/first_config.h"
#include "run/vae/vae_run.h"

namespace dalle2 {
namespace {

/// With /train/deterministic LibTorch refuses the gradients of some operations on a GPU: that shall be
/// known before a run has begun.
/// @param some features of pictures that want gradients
void check_deterministic(const at::Tensor& some, const std::string& path) {
  if (!at::globalContext().deterministicAlgorithms()) return;
  try {
    some.sum().backward();
  } catch (const std::exception& error) {
    throw ConfigError(
        "/train/deterministic: the gradients of the network in {} (/train/vgg_path) have no "
        "deterministic form on this device: \"{}\"\n  A network made by this version's "
        "scripts/export_vgg.py has one: make it again, or set /train/deterministic to false.",
        path,
        last_message(error));
  }
}

std::unique_ptr<VaeTrainer> make_trainer(const LoadedVaeConfig& loaded, const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  ImageFeatures features = perceptual_features(loaded.config, device);
  VqganVae vae(loaded.config.vae);
  auto trainer =
      std::make_unique<VaeTrainer>(vae, loaded.config.train, std::move(features), device);
  log_parameters(count_parameters(*vae));
  return trainer;
}

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
  DryRunPlan plan{.model = vae.ptr(), .batch_size = config.data.batch_size, .has_lanes = false};
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

/// @throws ConfigError if no grids can be written into train.results_folder
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

/// Of the parts: muse's trainer logs `loss` and `discr_loss`.
std::vector<PartMetricNames> metric_names(const VaeConfig& config) {
  std::vector<PartMetricNames> names = {{"", NameStyle::kUnderscore, "loss"}};
  if (config.use_vgg_and_gan) names.push_back({"discr_", NameStyle::kUnderscore, "loss"});
  return names;
}

/// The folder is looked at before anything is made.
RunPlan checked_plan(const LoadedVaeConfig& loaded, const RunProcess& process) {
  check_results_folder(loaded.config);
  return run_plan(loaded,
                  process,
                  metric_names(loaded.config.vae),
                  "pictures that are not like the others, and a learning rate that is too high");
}

}  // namespace

ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device) {
  if (!config.vae.use_vgg_and_gan) return nullptr;
  constexpr const char* kWhere = "/train/vgg_path";
  constexpr const char* kAdvice =
      "scripts/export_vgg.py makes one from the weights that torchvision publishes.";
  const ScriptArchive archive =
      open_script_archive(config.train.vgg_path.value(), kWhere, kAdvice, device);
  const ImageFeatures features = [module = archive.module](const at::Tensor& images) {
    return floats_of(module->forward({images}));
  };
  const int64_t side = config.data.image_size;
  std::string found;
  try {
    use_own_convolutions(*archive.module, device);
    const at::Tensor some = features(
        trial_pictures(/*count=*/2, side).to(device, at::kFloat).div_(255).requires_grad_());
    const bool has_shape = some.dim() == 2 && some.size(0) == 2;
    const bool is_finite = some.isfinite().all().item<bool>();
    if (has_shape && some.requires_grad() && is_finite) {
      check_deterministic(some, archive.path);
      return features;
    }
    found = !some.requires_grad() ? "features without gradients"
            : has_shape           ? "features that are not finite (NaN or infinite)"
                                  : c10::str(some.sizes());
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    found = "\"" + last_message(error) + "\"";
  }
  throw ConfigError(
      "{}: the network in {} was shown [2, 3, {}, {}]: expected features [2, F], got {}\n  {}",
      kWhere,
      archive.path,
      side,
      side,
      found,
      kAdvice);
}

VaeRun::VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process)
    : RowRun(
          checked_plan(loaded, process),
          std::make_unique<VaePosition>(),
          [&](const at::Device& device) { return make_trainer(loaded, device); },
          loaded.config.data.batch_size,
          [&config = loaded.config](const at::Device& device) {
            return ImageFolder(config.data, config.vae.channels, config.seed, gpu_of(device));
          }),
      config_(loaded.config),
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
  TrainingRun::open();
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

void dry_run(const LoadedVaeConfig& loaded, int64_t processes, const StartOptions& start) {
  const TrainVaeConfig& config = loaded.config;
  check_results_folder(config);
  const ImageFolder data(config.data, config.vae.channels, config.seed);
  data.check_usable();
  DryRunPlan plan = make_plan(loaded);
  plan.data_size = {data.files(), "picture"};
  VaePosition position;
  plan.start = start;
  finish_dry_run(plan, config.tracker, config.train, position, processes, [&] {
    for (const char* split : {"train", "val"}) {
      std::printf("%s: %s\n", split, counted(data.rows(split), "picture").c_str());
    }
    print_pictures(data.first_pictures(), decode_options(config.data, config.vae.channels));
    std::printf("steps: %s\n", with_commas(config.train.num_train_steps).c_str());
  });
}

FirstConfig vae_first_config(const InitCommand& command) {
  constexpr int64_t kSide = 64, kLayers = 2;
  InitCommand sized = command;
  sized.image_size = command.image_size.value_or(kSide);
  VaeDataConfig config;
  config.folder = command.data;
  config.image_size = *sized.image_size;
  const ImageFolder pictures(config, /*channels=*/3, /*seed=*/0);
  const PictureTally tally = pictures.first_pictures();
  const FirstRecipe recipe = first_recipe(FirstKind::kVae, sized, pictures.rows("train"));
  FirstConfig first{.found = {fmt::format("{} in {}, {} for training",
                                          counted(pictures.files(), "picture"),
                                          command.data,
                                          with_commas(pictures.rows("train")))},
                    .recipe = recipe};
  for (std::string& line : tally.describe()) first.found.push_back(std::move(line));
  const std::string model = fmt::format(
      R"(    "dim": {},
    "layers": {},                         // each halves the side: {} px become {} px of codes
    "lookup_free_quantization": false,
    "codebook_size": 1024,
    "use_vgg_and_gan": false,           // true is sharper, and takes "vgg_path" in "train"
    "l2_recon_loss": true,
{}    "quantizer_loss_without_gan": true
)",
      recipe.dim,
      kLayers,
      recipe.side,
      recipe.side >> kLayers,
      channels_text(tally));
  const std::string data = fmt::format(
      R"(    "folder": {},                       // pictures, those in tar shards too
    "image_size": {},
{}{}    "preprocessing": {{               // "RandomHorizontalFlip": true between these two doubles the pictures
      "Resize": {{"size": {}}},
      "CenterCrop": {{"size": {}}},
      "ToTensor": true
    }}
)",
      json_text(command.data),
      recipe.side,
      batch_text(recipe),
      reading_text(tally),
      recipe.side,
      recipe.side);
  constexpr int64_t kGrids = 20, kSaves = 5;  // of a run
  const std::string train =
      fmt::format("    \"save_results_every\": {},\n    \"save_model_every\": {},\n",
                  std::max<int64_t>(recipe.updates / kGrids, 1),
                  std::max<int64_t>(recipe.updates / kSaves, 1));
  first.text = first_file(command, recipe, model, data, train);
  return first;
}

}  // namespace dalle2
