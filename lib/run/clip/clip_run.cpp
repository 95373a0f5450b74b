// SPDX-License-Identifier: MIT
#include "run/clip/clip_run.h"

#include <torch/torch.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/random.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"

namespace dalle2 {
namespace {

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

}  // namespace

void check_processes(const ClipModelConfig& config, int64_t processes) {
  if (!config.vision_cfg.is_resnet() || processes == 1) return;
  throw ConfigError(
      "/clip/vision_cfg/layers: a ResNet is trained by one process, got {}: each would have other "
      "statistics in its batch norms\n  Train a vision transformer (a single number of layers), or "
      "use one process.",
      processes);
}

ClipRun::ClipRun(const LoadedClipConfig& loaded, const RunProcess& process)
    : ShardRun(
          run_plan(loaded,
                   process,
                   {{}},
                   "damaged images with `dalle2-train shards check`, and for captions that are all "
                   "identical"),
          [&](const at::Device& device) { return make_trainer(loaded, process, device); },
          {.loop = loaded.config.train, .data = loaded.config.data, .needs = clip_needs()}),
      config_(loaded.config),
      trainer_(trainer_as<ClipTrainer>()) {}

void ClipRun::introduce() const {
  session_.print_precision(trainer_.precision());
}

void ClipRun::load_examples() {
  session_.together("looking at a picture", [&] {
    const auto example = session_.group().is_main() ? data_.examples("train", 1) : std::nullopt;
    if (!example) return;
    naming_sample(*example,
                  [&] { check_picture_size(example->images, config_.clip.vision_cfg.image_size); });
  });
  if (tokenizer_) return;
  const bool has_earlier =
      session_.group().is_main() && checkpoints_.outline_of_earlier().has_value();
  const std::string answer =
      session_.group().text_of_main(has_earlier ? "earlier" : "", "whether there is a checkpoint");
  if (answer.empty()) make_tokenizer();
}

/// Rank 0 reads or trains it, and the others take its own.
void ClipRun::make_tokenizer() {
  std::string merges;
  session_.together("making the vocabulary", [&] {
    if (session_.group().is_main()) merges = make_clip_tokenizer(config_.clip, data_).merges();
  });
  take_vocabulary(session_.group().text_of_main(merges, "the vocabulary"), "/clip/tokenizer");
}

void ClipRun::take_vocabulary(const std::string& merges, const std::string& where) {
  tokenizer_.emplace(merges, where);
  merges_ = merges;
  check_vocabulary(*tokenizer_, config_.clip);
}

/// From here on each checkpoint holds the vocabulary, the one of a stop before the first step too.
void ClipRun::prepare() {
  const std::string& saved = trainer_.merges();
  if (!saved.empty()) {
    if (!tokenizer_ || merges_ != saved) take_vocabulary(saved, "the checkpoint's vocabulary");
    return;
  }
  if (trainer_.has_weights_without_vocabulary() && config_.clip.tokenizer.train) {
    throw ConfigError(
        "/clip/tokenizer/train: the run begins with the weights of a file, whose embeddings of "
        "tokens belong to another vocabulary\n  Leave the key out to use OpenAI's vocabulary.");
  }
  if (!tokenizer_) make_tokenizer();  // an earlier file was there that gave no vocabulary
  trainer_.set_merges(merges_);
}

ClipInputs ClipRun::inputs_of(const Batch& batch) {
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

/// One update, from the loss of all samples of the group together.
std::optional<int64_t> ClipRun::train_group(const std::vector<Batch>& group) {
  std::vector<ClipInputs> batches;
  int64_t samples = 0;
  for (const Batch& batch : group) {
    batches.push_back(inputs_of(batch));
    samples += batch.samples_of_step;
  }
  from_outside([&] { trainer_.check(batches); });
  trainer_.step(batches,
                hash_address({.seed = session_.seed(),
                              .purpose = "dropout",
                              .epoch = position_.epoch,
                              .step = position_.sample,
                              .rank = session_.group().rank()}));
  update(1);
  return samples;
}

void ClipRun::add_validation_losses(const Batch& batch,
                                    int64_t /*place*/,
                                    std::vector<LossSum>& sums) {
  const ClipInputs inputs = inputs_of(batch);
  from_outside([&] { trainer_.check({inputs}); });
  const ClipEvaluation found = trainer_.evaluate(inputs);
  sums[0].add(found.loss);
  validation_.add(found.pairs, batch.captions);
}

/// Retrieval over all samples of the validation.
void ClipRun::log_figures() {
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

void ClipRun::end_epoch() {
  if (position_.next_task == "eval") {
    log_figures();
    position_.next_task = "sample";
  }
  save_epoch();
}

LogRecord ClipRun::step_values(double samples_per_second) {
  LogRecord record = ShardRun::step_values(samples_per_second);
  record.emplace_back("Logit Scale", trainer_.logit_scale());
  return record;
}

}  // namespace dalle2
