// SPDX-License-Identifier: MIT
// What a CLIP's run is made of and does, what `evaluate` and `--dry-run` say of it, and the first config of
// `init`.

#include <fmt/ranges.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "data/shards/captions.h"
#include "data/shards/shards.h"
#include "io/text/clip_vocabulary.h"
#include "model/clip/clip.h"
#include "model/random.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/dry_run.h"
#include "run/init/first_config.h"
#include "run/kinds.h"
#include "run/shards/shard_run.h"
#include "trainer/clip_trainer.h"

namespace dalle2 {
namespace {

/// @throws ConfigError for a ResNet: the statistics of its batch norms would be each process's own
void check_processes(const ClipModelConfig& config, int64_t processes) {
  if (!config.vision_cfg.is_resnet() || processes == 1) return;
  throw ConfigError(
      "/clip/vision_cfg/layers: a ResNet is trained by one process, got {}: each would have other "
      "statistics in its batch norms\n  Train a vision transformer (a single number of layers), or "
      "use one process.",
      processes);
}

std::unique_ptr<ClipTrainer> make_trainer(const LoadedClipConfig& loaded,
                                          const RunProcess& process,
                                          const at::Device& device) {
  if (process.group != nullptr) check_processes(loaded.config.clip, process.group->size());
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  const auto clip = std::make_shared<ClipImpl>(loaded.config.clip);
  auto trainer = std::make_unique<ClipTrainer>(clip, loaded.config.train, device);
  log_parameters(count_parameters(trainer->model()));
  return trainer;
}

/// Loss and gradients of made-up pairs.
void step(ClipImpl& clip, int64_t batch) {
  const int64_t side = clip.image_size();
  const at::Tensor images = at::full({batch, 3, side, side}, 0.5);
  const at::Tensor tokens =
      at::full({batch, clip.max_text_len()}, clip.config().text_cfg.end_token(), at::kLong);
  contrastive_loss(pair_features(clip.image_features(images), clip.text_features(tokens)),
                   clip.logit_scale)
      .backward();
}

DryRunPlan make_plan(const LoadedClipConfig& loaded) {
  const auto clip = std::make_shared<ClipImpl>(loaded.config.clip);
  add_adapters({clip}, loaded.config.train);
  DryRunPlan plan{.model = clip,
                  .batch_size = loaded.config.data.batch_size,
                  .has_lanes = !clip->config().vision_cfg.is_resnet()};
  plan.networks.push_back({.label = "network",
                           .note = fmt::format("{} px", clip->image_size()),
                           .module = clip,
                           .step = [clip](int64_t batch) { step(*clip, batch); }});
  plan.texts = config_texts(loaded);
  return plan;
}

constexpr int64_t kVocabulary = 4096;
/// Tokens that the captions of a run will surely give: those of the shards that were looked at, less
/// a part, since some of these shards are not for training.
int64_t first_vocabulary(const ShardSurvey& survey) {
  ClipVocabularyTrainer trainer;
  for (const std::string& url : survey.urls) {
    try {
      const auto reader = open_shard(url, {}, {}, survey.caption_encoding);
      while (const auto sample = reader->next()) {
        const CaptionText caption = caption_of(*sample, survey.caption_encoding);
        if (!caption.text.empty()) trainer.add(caption.text);
      }
    } catch (const DataError&) {  // what comes before the damage counts
    }
  }
  const int64_t least = ClipTokenizer::kLeastVocabSize;
  const int64_t most = ClipTokenizer(trainer.merges(2 * kVocabulary), "captions").vocab_size();
  return std::min(kVocabulary, least + std::max<int64_t>((most - least) / 2, 1));
}

class ClipRun : public ShardRun {
 public:
  ClipRun(const LoadedClipConfig& loaded, const RunProcess& process)
      : ShardRun(
            run_plan(
                loaded,
                process,
                {{}},
                "damaged images with `dalle2-train shards check`, and for captions that are all "
                "identical"),
            [&](const at::Device& device) { return make_trainer(loaded, process, device); },
            loaded.config.train,
            loaded.config.data,
            clip_needs(loaded.config.clip)),
        config_(loaded.config),
        trainer_(trainer_as<ClipTrainer>()) {}

 private:
  /// Looks at a picture. Takes the vocabulary of the checkpoint that the run resumes from, or makes one.
  /// From here on each checkpoint holds the vocabulary, the one of a stop before the first step too.
  void prepare() override {
    ShardRun::prepare();
    // Which clip_needs() checks.
    session_.together(
        "looking at a picture", [&] { data_.examples("train", 1); }, {.on_main = true});
    const std::string& saved = trainer_.merges();
    if (!saved.empty()) return take_vocabulary(saved, "the checkpoint's vocabulary");
    if (trainer_.has_weights_without_vocabulary() && config_.clip.tokenizer.train) {
      throw ConfigError(
          "/clip/tokenizer/train: the run begins with the weights of a file, whose embeddings of "
          "tokens belong to another vocabulary\n  Leave the key out to use OpenAI's vocabulary.");
    }
    std::string merges;  // rank 0 reads or trains it, and the others take its own
    session_.together("making the vocabulary",
                      [&] { merges = make_clip_tokenizer(config_.clip, data_).merges(); },
                      {.on_main = true});
    take_vocabulary(session_.group().text_of_main(merges, "the vocabulary"), "/clip/tokenizer");
    trainer_.set_merges(tokenizer_->merges());
  }
  /// The loss is one of all samples of the group together.
  std::optional<int64_t> accumulate() override {
    std::vector<ClipInputs> batches;
    for (const Batch& batch : group_) batches.push_back(inputs_of(batch));
    trainer_.step(batches,
                  hash_address({.seed = session_.seed(),
                                .purpose = "dropout",
                                .epoch = position_.epoch,
                                .step = position_.loader.row,
                                .rank = session_.group().rank()}));
    return samples_of(group_);
  }
  void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) override {
    const ClipInputs inputs = inputs_of(batch);
    const ClipEvaluation found = trainer_.evaluate(inputs);
    sums[0].add(found.loss);
    validation_.add(found.pairs, batch.captions);
  }
  /// Retrieval over all samples of the validation.
  void evaluate_epoch() override {
    const RetrievalSamples samples = validation_.gather(session_.group());
    if (!session_.group().is_main()) return;
    const auto figures = retrieval_figures(samples);
    if (figures.empty()) return;
    LogRecord record;
    ShownRecord shown;
    for (const auto& [name, value] : figures) {
      record.emplace_back(name, value);
      if (!name.ends_with("R@5")) shown.push_back({.label = name, .values = {value}});
    }
    session_.tracker().log(record, trainer_.first_steps(), shown);
  }
  LogRecord step_values(double samples_per_second) override {
    LogRecord record = ShardRun::step_values(samples_per_second);
    record.emplace_back("Logit Scale", trainer_.logit_scale());
    return record;
  }
  void take_vocabulary(const std::string& merges, const std::string& where) {
    tokenizer_.emplace(merges, where);
    check_vocabulary(*tokenizer_, config_.clip);
  }
  ClipInputs inputs_of(const Batch& batch) {
    if (batch.size() == 0) return {};
    ClipInputs inputs{batch.images,
                      trimmed_tokens(tokens_of(batch.captions,
                                               *tokenizer_,
                                               config_.clip.text_cfg.context_length,
                                               TextFrame::kEnclosed,
                                               &long_captions_))};
    if (!session_.device().is_cpu()) inputs.tokens = inputs.tokens.pin_memory();
    return timed(&session_.times(), StepPhase::kCopy, [&] {
      return copied_to(session_.device(), std::move(inputs));
    });
  }

  const TrainClipConfig& config_;
  ClipTrainer& trainer_;
  std::optional<ClipTokenizer> tokenizer_;  // since prepare()
  LongCaptions long_captions_;
  ClipValidation validation_;
};

}  // namespace

std::unique_ptr<TrainingRun> make_run(const LoadedClipConfig& loaded, const RunProcess& process) {
  return std::make_unique<ClipRun>(loaded, process);
}

/// The loss of the batches, and the retrieval over all samples of the split. The ranks share them.
nlohmann::ordered_json figures_of(const LoadedClipConfig& loaded, const Evaluation& evaluation) {
  const auto& [command, device, group] = evaluation;
  const TrainClipConfig& config = loaded.config;
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  const LoadedRunClip clip = load_clip(evaluation.source(config.train), checkpoint);
  clip.clip->to(device);
  const int64_t length = config.clip.text_cfg.context_length;
  ShardData data(config.data, config.seed, clip_needs(config.clip), device);
  data.deal(slices_of(root));
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), data_size_of(data));
  const auto loader = data.loader_of_share(command.split,
                                           config.train.validation_samples.value_or(INT64_MAX),
                                           config.data.batch_size,
                                           {group.rank(), group.size()});
  loader->start_epoch(0);
  const torch::NoGradGuard no_grad;
  ClipValidation validation;
  std::vector<double> sums(2, 0.0);  // losses, batches
  while (const std::optional<Batch> batch = loader->next()) {
    const at::Tensor pairs =
        pair_features(clip.clip->embed_image(batch->images.to(device)),
                      clip.network->text_features(
                          tokens_of(batch->captions, *clip.tokenizer, length).to(device)));
    sums[0] += contrastive_loss(pairs, clip.network->logit_scale).item<double>();
    sums[1] += 1;
    validation.add(pairs, batch->captions);
    group.still_busy();
  }
  sums = group.sum(sums, "losses of the batches");
  const RetrievalSamples samples = validation.gather(group);
  if (sums[1] == 0) throw DataError("--split {}: has no usable sample", command.split);
  nlohmann::ordered_json json;
  json["pairs"] = samples.pairs.size(0);
  json["loss"] = sums[0] / sums[1];
  for (const auto& [name, value] : retrieval_figures(samples)) json[name] = value;
  return json;
}

void dry_run(const LoadedClipConfig& loaded, int64_t processes, const StartOptions& start) {
  const TrainClipConfig& config = loaded.config;
  check_processes(config.clip, processes);
  ShardData data(config.data,
                 config.seed,
                 clip_needs(config.clip),
                 at::kCPU,
                 RankInfo{.world = static_cast<int>(processes)});
  data.deal();
  data.check_usable("train");
  if (!config.clip.tokenizer.train) make_clip_tokenizer(config.clip, data);  // names its faults
  DryRunPlan plan = make_plan(loaded);
  plan.data_size = data_size_of(data);
  ShardPosition position;
  plan.start = start;
  finish_dry_run(plan, config.tracker, config.train, position, processes, [&] {
    print_shards(data, position, config.train, config.train, processes);
  });
}

FirstConfig clip_first_config(const InitCommand& command) {
  const ShardSurvey survey = survey_shards(command);
  if (survey.with_caption == 0) {
    throw DataError(
        "{}: no picture has a caption, and a CLIP learns from pairs{}{}\n"
        "  Put a .txt file of the same name beside each picture.",
        command.data,
        survey.bad_captions.empty() ? "" : "; ",
        fmt::join(survey.bad_captions, "; "));
  }
  const FirstRecipe recipe = first_recipe(FirstKind::kClip, command, survey);
  FirstConfig first{.found = describe(survey), .recipe = recipe};
  for (std::string& line : of_smaller_pictures(survey, recipe.side)) first.found.push_back(line);
  const bool gpu = recipe.input.gpu;  // else small, as text_clip.json
  const std::string model = fmt::format(
      R"(    "embed_dim": 128,
    "vision_cfg": {{"layers": {}, "width": {}, "head_width": {}, "patch_size": {}, "image_size": {}}},
    "text_cfg": {{"context_length": 32, "width": {}, "heads": {}, "layers": {}}},
    "tokenizer": {{"train": {}}}       // a vocabulary of the captions
)",
      gpu ? 6 : 4,
      gpu ? 192 : 128,
      gpu ? 64 : 32,
      recipe.side / (gpu ? 8 : 4),
      recipe.side,
      gpu ? 128 : 96,
      gpu ? 2 : 4,
      gpu ? 4 : 3,
      first_vocabulary(survey));
  first.text = first_file(command,
                          recipe,
                          model,
                          shards_text(command, survey, recipe, /*least=*/0.9),
                          "    \"wd\": 0.1,\n");
  return first;
}

}  // namespace dalle2
