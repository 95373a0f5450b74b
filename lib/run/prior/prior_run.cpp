// SPDX-License-Identifier: MIT
// What a prior run is made of and does, what `evaluate` and `--dry-run` say of it, and the first config of
// `init`.
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "data/embeddings/embedding_table.h"
#include "data/embeddings/embeddings.h"
#include "data/embeddings/prior_dataset.h"
#include "data/loader/drop_log.h"
#include "metrics/feature_metrics.h"
#include "model/random.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/dry_run.h"
#include "run/init/first_config.h"
#include "run/kinds.h"
#include "run/loop/row_run.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {
namespace {

/// The CLIP of /prior/clip, which fits the prior; null for none. @throws as open_clip_of()
std::shared_ptr<LoadedClip> open_prior_clip(const PriorConfig& prior) {
  auto clip = open_clip_of(prior.clip, "/prior/clip");
  if (clip) check_clip_widths(prior, "/prior", *clip->clip, clip->name);
  return clip;
}

/// Rows for a run with that CLIP, or without. @throws as PriorDataset
PriorDataset prior_data(const TrainPriorConfig& config, const LoadedClip* clip) {
  std::optional<ClipPreprocessing> pictures;
  if (clip != nullptr) pictures = clip->clip->preprocessing();
  return {config.data, config.prior, config.seed, pictures};
}

/// A batch on `device`, as the prior takes it: with what the CLIP makes of captions and pictures.
/// @param clip null: the batch has embeddings
PriorInputs to_inputs(const PriorBatch& batch,
                      const at::Device& device,
                      const LoadedClip* clip,
                      const PriorConfig& prior) {
  PriorInputs inputs =
      copied_to(device, PriorInputs{batch.image_embeds, {batch.text_embeds, batch.text_encodings}});
  if (clip == nullptr) return inputs;
  if (!inputs.image_embeds.defined())
    inputs.image_embeds = clip->embed_images(batch.pictures.to(device));
  inputs.text = as_prior_takes(clip->embed_captions(batch.captions), prior);
  return inputs;
}

int64_t count_rows(const PriorDataset& data) {
  return data.rows("train") + data.rows("val") + data.rows("test");
}

/// What `shards embed` wrote beside a folder of embeddings; empty without, or for none.
std::string clip_beside(const std::optional<std::string>& url) {
  return clip_of_manifest(embed_manifest_beside(url.value_or("")).value_or(""));
}

/// clip_sha256() of the CLIP whose embeddings of texts the run has: of `clip`, or what `shards embed`
/// has written beside the folder /data/text_url on this machine. Empty if it is not known.
std::string clip_identity(const TrainPriorConfig& config, const LoadedClip* clip) {
  return clip != nullptr ? clip_sha256(*clip->clip) : clip_beside(config.data.text_url);
}

/// Warns if the embeddings of pictures are of another CLIP than those of texts, as far as `shards embed` has written that down.
void warn_of_several_clips(const TrainPriorConfig& config, const LoadedClip* clip) {
  const std::string of_images = clip_beside(config.data.image_url);
  if (of_images.empty()) return;
  const std::string of_texts = clip_identity(config, clip);
  if (of_texts.empty() || of_texts == of_images) return;
  log_warning(
      "config",
      "/data/image_url: the embeddings are of another CLIP than {}: its identity, a SHA-256, is {:.16}, "
      "and that of the other {:.16}\n  A prior learns how the two embeddings of one CLIP belong together. "
      "Make both with one CLIP.",
      clip != nullptr ? "/prior/clip" : "those of /data/text_url",
      of_images,
      of_texts);
}

[[noreturn]] void throw_nothing_usable(const PriorDataset& data, bool has_clip) {
  throw DataError(
      "/data: none of the {} training rows can be used: {}",
      with_commas(data.rows("train")),
      has_clip
          ? "none has a caption in /data/meta_url and a finite embedding in /data/image_url, or a "
            "picture that can be read\n  Look at the warnings above."
          : "all hold NaN or infinity in /data/image_url, /data/text_url or "
            "/data/text_encodings_url\n  Make the embeddings again.");
}

/// Reads training rows until one can be used, some 65,000 at most. @throws DataError if there are no
/// more, and none can
void check_usable(const PriorDataset& data, bool has_clip) {
  constexpr int64_t kMostTried = 1 << 16, kMostAtOnce = 1 << 10;
  DropLog drops;
  int64_t row = 0, count = 1;
  for (auto batch = data.batch("train", /*epoch=*/0, row, count); batch;
       batch = data.batch("train", /*epoch=*/0, row, count)) {
    if (batch->size() > 0) return;
    drops.merge(std::move(batch->drops));
    row += count;
    if (row >= kMostTried || stop_requested() != 0) return;  // an epoch will tell
    count = std::min(2 * count, kMostAtOnce);
  }
  DropCounts by_reason, of_epoch;
  drops.report("train", by_reason, of_epoch);
  throw_nothing_usable(data, has_clip);
}

/// With the CLIP that its files hold.
DiffusionPrior make_prior(const LoadedPriorConfig& loaded, const LoadedClip* clip) {
  DiffusionPrior prior(loaded.plan);
  if (clip != nullptr) clip->hold_in(*prior);
  return prior;
}

std::unique_ptr<PriorTrainer> make_trainer(const LoadedPriorConfig& loaded,
                                           const LoadedClip* clip,
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

DryRunPlan make_plan(const LoadedPriorConfig& loaded, const LoadedClip* clip) {
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

/// The names are the reference's.
struct PriorPosition : RunPosition {
  /// @param config gives the values of the start
  explicit PriorPosition(const PriorTrainConfig& config) : config_(&config) { reset(); }

  double best_validation_loss = 0;  ///< that of the config before there is one
  int64_t rows_per_epoch = 1;       ///< of the data: no field of a checkpoint

  std::vector<PositionField> fields() override {
    return {{"epoch", &epoch},
            {"samples_seen", &samples_seen},
            {"best_validation_loss", &best_validation_loss}};
  }
  void reset() override {
    epoch = config_->current_epoch;
    samples_seen = config_->num_samples_seen;
    best_validation_loss = config_->best_validation_loss;
    next_task = kTrainTask;
    actions_due = 0;
    restart_epoch();
  }
  /// A checkpoint of the reference only says how many samples the whole run has seen.
  void guess_own_fields() override { loader.row = samples_seen % rows_per_epoch; }
  void forget_losses() override { best_validation_loss = config_->best_validation_loss; }
  std::string description() const override {
    const bool none_yet = best_validation_loss == config_->best_validation_loss;
    return fmt::format("epoch {} having seen {} samples with best validation loss {}",
                       epoch,
                       samples_seen,
                       none_yet ? "N/A" : short_number(best_validation_loss));
  }
  std::string resumes_with() const override {
    return fmt::format("epoch {} at sample {}", epoch, loader.row);
  }

 private:
  const PriorTrainConfig* config_;
};

/// What the console calls a similarity; null: it is for log.jsonl alone.
const char* label_of(const std::string& similarity) {
  if (similarity == "similarity with original image") return "image";
  if (similarity == "similarity with text") return "text";
  if (similarity == "similarity with unrelated caption") return "other text";
  return nullptr;
}

struct PriorRecord {
  LogRecord values;
  ShownRecord shown;
};

class PriorRun : public RowRun<PriorDataset> {
 public:
  PriorRun(const LoadedPriorConfig& loaded,
           const RunProcess& process,
           const std::shared_ptr<LoadedClip>& clip)
      : RowRun(
            run_plan(loaded,
                     process,
                     {metric_names(loaded.config.prior)},
                     "embeddings that are far larger than the others"),
            std::make_unique<PriorPosition>(loaded.config.train),
            [&](const at::Device& device) {
              const bool is_main = process.group == nullptr || process.group->is_main();
              return make_trainer(loaded, clip.get(), device, is_main);
            },
            loaded.config.data.batch_size,
            [&](const at::Device&) { return prior_data(loaded.config, clip.get()); }),
        config_(loaded.config),
        clip_(clip),
        position_(position_as<PriorPosition>()),
        trainer_(trainer_as<PriorTrainer>()) {
    position_.rows_per_epoch = data_.rows("train");
    if (!clip_) return;
    clip_->precision = trainer_.precision().precision;
    clip_->max_batch_size = config_.train.max_batch_size;
  }

  void open() override {
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

 private:
  void repeat_actions() override { validate(); }
  void prepare() override {
    validated_at_ = session_.group().heard_seconds();
    if (position_.samples_seen > 0 || !session_.group().is_main()) return;
    warn_of_several_clips(config_, clip_.get());
  }
  PriorInputs inputs_of(const PriorBatch& batch) {
    return to_inputs(batch, session_.device(), clip_.get(), config_.prior);
  }
  /// A place in the epoch's order counts only in that order: rows that have moved to a server, or from
  /// one, come in another.
  void open_epoch() override {
    if (position_.loader.row > 0 && position_.loader.block_rows != data_.block_rows()) {
      log_warning(
          "data",
          "the order of the rows has changed, as the embeddings lie elsewhere than when the "
          "checkpoint was made: epoch {} starts over",
          position_.epoch);
      position_.restart_epoch();
    }
    position_.loader.block_rows = data_.block_rows();
    RowRun::open_epoch();
    log_info("train", "Starting epoch {}", position_.epoch);
    if (position_.loader.row == 0)
      session_.tracker().log(
          {{"tracking/epoch", position_.epoch}}, trainer_.steps(), ShownRecord{});
  }
  std::optional<int64_t> accumulate() override {
    return pass_group(group_, {1}, [&](const Step& each, const BatchShare& share) {
      // Addressed by the rows of the epoch so far, so that a resumed epoch, or one of another number
      // of ranks, draws the same.
      const at::Generator random = session_.generator("train", position_.epoch, each.row);
      trainer_.step(inputs_of(each.batch), random, share);
    });
  }
  /// A stop cuts a validation off that is due: the resumed run begins with it.
  void after_step() override {
    if (session_.is_due(validated_at_, config_.data.eval_every_seconds)) validate();
    if (session_.stop_asked()) return;
    const bool due = session_.is_due(latest_at_, config_.train.save_every_seconds);
    // While updates are being skipped the weights may be at fault: they must not replace an older file.
    if (due && !checkpoints_.is_amid_skips()) save_latest();
  }
  void close_epoch(bool whole) override {
    if (whole) report_drops("train", dropped_in_epoch_);
    RowRun::close_epoch(whole);
  }
  [[noreturn]] void throw_nothing_usable() const override {
    dalle2::throw_nothing_usable(data_, clip_ != nullptr);
  }
  /// As in the reference, after the last epoch; but here a good loss of the test rows makes no best
  /// checkpoint.
  void end_epochs() override {
    validate();
    save_latest();
    const HeldAverages averages = trainer_.hold_averages();
    DropCounts dropped;
    const auto loss = mean_loss("test", trainer_.uses_ema(), dropped);
    session_.progress().pause();
    report_drops("test", dropped);
    if (!loss) return;
    log({loss_record(trainer_.uses_ema() ? "ema-test" : "online-test", "test loss", *loss)});
  }
  std::optional<double> mean_loss(const std::string& split, bool averaged, DropCounts& dropped) {
    return mean_loss_of_split(split, data_.rows(split), dropped, [&](const Step& step) {
      // The same draws every time: two validations then differ by the weights alone.
      const at::Generator random = session_.generator("validate " + split, /*epoch=*/0, step.row);
      return trainer_.evaluate(inputs_of(step.batch), random, averaged);
    });
  }
  /// A stop cuts it off before anything is logged: the resumed run makes it again.
  void validate() {
    act([this] {
      const double loss = validation_loss();
      if (save_if_best(loss, position_.best_validation_loss)) position_.best_validation_loss = loss;
    });
    validated_at_ = session_.group().heard_seconds();
    since_step_.restart();
  }
  /// Logs what a validation finds. @return the loss, of the averages if there are any; NaN without rows
  double validation_loss() {
    session_.progress().pause();
    const HeldAverages averages = trainer_.hold_averages();
    Timer timer;
    const bool has_average = trainer_.uses_ema();
    const char* folder = has_average ? "ema-validation" : "online-validation";
    DropCounts dropped, dropped_again;
    const auto online = mean_loss("val", /*averaged=*/false, dropped);
    std::vector<PriorRecord> records;
    double loss = NAN;
    if (online) {
      const char* label = has_average ? "validation loss without averaging" : "validation loss";
      records.push_back(loss_record("online-validation", label, *online));
      session_.together("similarities of the validation rows",
                        [&] { draw_similarities(folder, records); },
                        {.on_main = true});
      loss = has_average ? mean_loss("val", /*averaged=*/true, dropped_again).value() : *online;
      if (has_average) records.push_back(loss_record(folder, "validation loss", loss));
      records.push_back({{{"tracking/validation length (minutes)", timer.seconds() / 60}}, {}});
    }
    session_.throw_if_stop_asked();
    report_drops("val", dropped);
    log(records);
    return loss;
  }
  void log(const std::vector<PriorRecord>& records) {
    for (const PriorRecord& each : records) {
      session_.tracker().log(each.values, trainer_.steps(), each.shown);
    }
  }
  PriorRecord loss_record(const std::string& folder, const char* label, double loss) const {
    const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
    return {{{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
            {{.label = label, .values = {loss}}}};
  }
  void draw_similarities(const std::string& folder, std::vector<PriorRecord>& records) {
    const auto batch =
        from_outside([&] { return data_.batch("val", 0, 0, config_.data.batch_size); });
    if (!batch || batch->size() == 0) return;
    PriorSampleOptions options;
    const PriorInputs inputs = inputs_of(*batch);
    options.text = inputs.text;
    options.on_step = [&](size_t step, size_t steps) {
      session_.throw_if_signalled();
      session_.progress().stage(fmt::format("drawing embeddings: step {}/{}", step + 1, steps));
    };
    for (const int64_t steps : config_.train.eval_timesteps) {
      options.timesteps = steps;
      options.generator = session_.generator("similarities", /*epoch=*/0, steps);
      const auto similarities = embedding_similarities(
          inputs.text.embeds, inputs.image_embeds, trainer_.p_sample_loop(options));
      LogRecord record;
      ShownRecord shown;
      for (const auto& [name, value] : similarities) {
        record.emplace_back(fmt::format("metrics/{}/{} [steps={}]", folder, name, steps), value);
        if (const char* label = label_of(name))
          shown.push_back({.label = label, .values = {value}});
      }
      shown.insert(shown.begin(), {.label = "cosines in", .values = {steps}, .unit = "steps:"});
      records.push_back({std::move(record), std::move(shown)});
    }
  }
  LogRecord step_values(double samples_per_second) override {
    return {{"tracking/samples-sec", samples_per_second},
            {"tracking/samples-seen", position_.samples_seen}};
  }

  const TrainPriorConfig& config_;
  std::shared_ptr<LoadedClip> clip_;  // null: embeddings are read
  PriorPosition& position_;
  PriorTrainer& trainer_;
  double validated_at_ = 0;  // by ProcessGroup::heard_seconds(), or when the run began
};

}  // namespace

std::unique_ptr<TrainingRun> make_run(const LoadedPriorConfig& loaded, const RunProcess& process) {
  return std::make_unique<PriorRun>(loaded, process, open_prior_clip(loaded.config.prior));
}

/// The five similarities of /train/eval_timesteps, of the split's first batch, as a run logs them.
/// The ranks share the numbers of steps.
nlohmann::ordered_json figures_of(const LoadedPriorConfig& loaded, const Evaluation& evaluation) {
  const auto& [command, device, group] = evaluation;
  constexpr size_t kSimilarities = 5;
  const TrainPriorConfig& config = loaded.config;
  const std::vector<int64_t>& steps =
      command.timesteps.empty() ? config.train.eval_timesteps : command.timesteps;
  for (const int64_t count : steps) {
    if (count >= 2 && count <= config.prior.timesteps) continue;
    throw ConfigError("--timesteps: expected 2 to {}, the training steps of the prior, got {}",
                      config.prior.timesteps,
                      count);
  }
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  DiffusionPrior prior = load_prior(evaluation.source(config.train), checkpoint);
  prior->to(device);
  const auto clip = open_prior_clip(config.prior);
  if (clip) clip->clip->to(device);
  const PriorDataset data = prior_data(config, clip.get());
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), {count_rows(data), "row"});
  const auto batch = data.batch(command.split, 0, 0, config.data.batch_size);
  if (!batch || batch->size() == 0) {
    throw DataError("--split {}: has no usable row (/data/splits)", command.split);
  }
  std::vector<std::string> names(kSimilarities);
  std::vector<double> values(kSimilarities * steps.size(), 0.0);  // of other ranks: 0
  PriorSampleOptions options;
  const PriorInputs inputs = to_inputs(*batch, device, clip.get(), config.prior);
  options.text = inputs.text;
  for (size_t i = static_cast<size_t>(group.rank()); i < steps.size();
       i += static_cast<size_t>(group.size())) {
    options.timesteps = steps[i];
    options.generator =
        make_generator({config.seed, "similarities", /*epoch=*/0, steps[i]}, device);
    const auto similarities = embedding_similarities(
        inputs.text.embeds, inputs.image_embeds, prior->p_sample_loop(options));
    for (size_t j = 0; j < kSimilarities; ++j)
      std::tie(names[j], values[i * kSimilarities + j]) = similarities.at(j);
    group.still_busy();
  }
  values = group.sum(values, "similarities");
  nlohmann::ordered_json metrics;
  metrics["rows"] = batch->size();
  for (size_t i = 0; i < values.size(); ++i) {  // rank 0, which prints, has the names
    metrics[fmt::format("{} [steps={}]", names[i % kSimilarities], steps[i / kSimilarities])] =
        values[i];
  }
  return metrics;
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
      print_line("{}: {}", split, counted(data.rows(split), "sample"));
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
