// SPDX-License-Identifier: MIT
// What a prior run is made of, what `--dry-run` says of it, and the first config of `init`.
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/embeddings/embedding_table.h"
#include "metrics/embedding_metrics.h"
#include "model/random.h"
#include "run/checkpoints/model_weights.h"
#include "run/dry_run.h"
#include "run/init/first_config.h"
#include "run/prior/prior_run.h"
#include "trainer/adapters.h"

namespace dalle2 {
namespace {

/// With the CLIP that its files hold.
DiffusionPrior make_prior(const LoadedPriorConfig& loaded, const ClipEmbedder* clip) {
  DiffusionPrior prior(loaded.plan);
  if (clip != nullptr) clip->hold_in(*prior);
  return prior;
}

std::unique_ptr<PriorTrainer> make_trainer(const LoadedPriorConfig& loaded,
                                           const ClipEmbedder* clip,
                                           const at::Device& device,
                                           bool is_main) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  DiffusionPrior prior = make_prior(loaded, clip);
  // Before it moves to the device. Other ranks write no file.
  const std::string identity = is_main ? clip_identity(loaded.config, clip) : "";
  auto trainer = std::make_unique<PriorTrainer>(prior, loaded.config.train, device);
  trainer->set_clip_identity(identity);
  log_parameters(count_parameters(*prior->net()));
  return trainer;
}

PartMetricNames metric_names(const PriorConfig& config) {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config.loss_type)];
  return {"tracking/", NameStyle::kHyphen, fmt::format("training {}", loss_type)};
}

/// Loss and gradients of made-up embeddings.
void step(DiffusionPrior prior, int64_t batch) {
  const PriorConfig& config = prior->plan().config;
  PriorInputs inputs{at::ones({batch, config.image_embed_dim}),
                     {at::ones({batch, config.image_embed_dim}), {}}};
  if (config.condition_on_text_encodings) {
    inputs.text.encodings = at::ones({batch, config.net.text_len(), config.image_embed_dim});
  }
  prior->forward(inputs, make_generator({.purpose = "dry run"}, at::kCPU)).backward();
}

DryRunPlan make_plan(const LoadedPriorConfig& loaded, const ClipEmbedder* clip) {
  DiffusionPrior prior = make_prior(loaded, clip);
  add_adapters({prior->net()}, loaded.config.train);
  return {.model = prior.ptr(),
          .networks = {{.label = "network",
                        .note = "",
                        .module = prior->net(),
                        .step = [prior](int64_t batch) { step(prior, batch); }}},
          .batch_size = loaded.config.data.batch_size,
          .cuda_graph = loaded.config.train.cuda_graph,
          .texts = config_texts(loaded)};
}

struct Rows {
  std::string folder;
  int64_t count = 0, width = 0;
};

Rows rows_of(const InitCommand& command,
             const std::string& what,
             const std::vector<std::string>& names) {
  const std::string folder = find_embeddings(command.data, names);
  if (folder.empty()) {
    throw DataError(
        "{}: no folder {} with .npy files of {} embeddings was found in it or beside it\n  `dalle2-train shards "
        "embed` makes them of captioned shards. For another kind of run, give --kind.",
        command.data,
        fmt::join(names, " or "),
        what);
  }
  const EmbeddingTable table(folder, folder, {0});
  return {.folder = folder, .count = table.rows(), .width = table.row_shape().back()};
}

}  // namespace

int64_t count_rows(const PriorDataset& data) {
  return data.rows("train") + data.rows("val") + data.rows("test");
}

PriorRun::PriorRun(const LoadedPriorConfig& loaded, const RunProcess& process)
    : PriorRun(loaded, process, open_prior_clip(loaded.config.prior)) {}

PriorRun::PriorRun(const LoadedPriorConfig& loaded,
                   const RunProcess& process,
                   const std::shared_ptr<ClipEmbedder>& clip)
    : TrainingRun(run_plan(loaded,
                           process,
                           {metric_names(loaded.config.prior)},
                           "embeddings that are far larger than the others"),
                  std::make_unique<PriorPosition>(loaded.config.train),
                  [&](const at::Device& device) {
                    const bool is_main = process.group == nullptr || process.group->is_main();
                    return make_trainer(loaded, clip.get(), device, is_main);
                  }),
      config_(loaded.config),
      clip_(clip),
      data_(prior_data(config_, clip.get())),
      position_(position_as<PriorPosition>()),
      trainer_(trainer_as<PriorTrainer>()) {
  position_.rows_per_epoch = data_.rows("train");
  if (clip_) clip_->compute_as(trainer_.precision().precision, config_.train.max_batch_size);
}

void PriorRun::open() {
  TrainingRun::open();
  log_info("data",
           "rows: {} train, {} val, {} test; batches of {}{}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           with_commas(data_.rows("test")),
           config_.data.batch_size,
           of_each_rank(session_.group()));
  session_.check_same_data(data_.names(), "embeddings", "/data/image_url, /data/text_url");
  check_usable(data_, clip_ != nullptr);
  checkpoints_.set_data_size({count_rows(data_), "row"});
}

void PriorRun::prepare() {
  if (position_.samples_seen > 0 || !session_.group().is_main()) return;
  warn_of_several_clips(config_, clip_.get());
}

void dry_run(const LoadedPriorConfig& loaded, int64_t processes, const StartOptions& start) {
  const TrainPriorConfig& config = loaded.config;
  const auto clip = open_prior_clip(config.prior);
  const PriorDataset data = prior_data(config, clip.get());
  check_usable(data, clip != nullptr);
  warn_of_several_clips(config, clip.get());
  DryRunPlan plan = make_plan(loaded, clip.get());
  plan.data_size = {count_rows(data), "row"};
  PriorPosition position(config.train);
  plan.start = start;
  finish_dry_run(plan, config.tracker, config.train, position, processes, [&] {
    for (const char* split : {"train", "val", "test"}) {
      std::printf("%s: %s\n", split, counted(data.rows(split), "sample").c_str());
    }
    print_steps(data.rows("train"), config.data.batch_size * processes, config.train);
  });
}

FirstConfig prior_first_config(const InitCommand& command) {
  const Rows image = rows_of(command, "image", {"img_emb", "images"});
  const Rows text = rows_of(command, "text", {"text_emb", "texts"});
  if (image.count != text.count || image.width != text.width) {
    throw DataError(
        "{} has {} of width {}, {} has {} of width {}: a prior needs pairs of one width",
        image.folder,
        counted(image.count, "row"),
        image.width,
        text.folder,
        counted(text.count, "row"),
        text.width);
  }
  constexpr int64_t kHeadWidth = 64, kDepth = 6;
  constexpr double kTrain = 0.8;
  const FirstRecipe recipe = first_recipe(
      FirstKind::kPrior, command, static_cast<int64_t>(kTrain * static_cast<double>(image.count)));
  const std::string model = fmt::format(
      R"(    "net": {{"dim": {}, "depth": {}, "dim_head": {}, "heads": {}, "max_text_len": 1}},
    "image_embed_dim": {},
    "condition_on_text_encodings": false,   // true takes "text_encodings_url", and "max_text_len" 77
    "timesteps": 1000,
    "sample_timesteps": 64
)",
      image.width,
      kDepth,
      kHeadWidth,
      std::max<int64_t>(1, image.width / kHeadWidth),
      image.width);
  const std::string data = fmt::format(
      R"(    "image_url": {},
    "text_url": {},
{}    "eval_every_seconds": 60,
    "splits": {{"train": {}, "val": 0.1, "test": 0.1}}
)",
      json_text(image.folder),
      json_text(text.folder),
      batch_text(recipe),
      kTrain);
  return {.text = first_file(command, recipe, model, data),
          .found = {fmt::format("{} of image and text embeddings of width {} in {} and {}",
                                counted(image.count, "pair"),
                                image.width,
                                image.folder,
                                text.folder)},
          .recipe = recipe};
}

}  // namespace dalle2
