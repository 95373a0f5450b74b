// SPDX-License-Identifier: MIT
// How a prior run starts, where it stands, and what it logs; the loop is in prior_run.cpp.
#include <torch/torch.h>

#include "base/log.h"
#include "base/text.h"
#include "metrics/embedding_similarities.h"
#include "run/model_weights.h"
#include "run/prior_run.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

std::unique_ptr<PriorTrainer> make_trainer(const LoadedPriorConfig& loaded,
                                           const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  DiffusionPrior prior(loaded.plan);
  auto trainer = std::make_unique<PriorTrainer>(prior, loaded.config.train, device);
  const ParameterCount count = count_parameters(*prior->net());
  log_info("model", "Number of parameters: {} total; {} training", count.total, count.training);
  return trainer;
}

PartMetricNames metric_names(const PriorConfig& config) {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config.loss_type)];
  return {.loss = fmt::format("tracking/training-{}", loss_type),
          .losses_not_finite = "tracking/losses-not-finite",
          .ema_decay = "tracking/ema-decay",
          .learning_rate = "tracking/learning-rate",
          .grad_norm = "tracking/grad-norm",
          .skipped_updates = "tracking/skipped-updates",
          .loss_scale = "tracking/loss-scale"};
}

/// What the console calls a similarity; null: it is for log.jsonl alone.
const char* label_of(const std::string& similarity) {
  if (similarity == "similarity with original image") return "image";
  if (similarity == "similarity with text") return "text";
  if (similarity == "similarity with unrelated caption") return "other text";
  return nullptr;
}

}  // namespace

void PriorPosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("samples_seen", samples_seen);
  visitor.field("best_validation_loss", best_validation_loss);
  visitor.own("row", row);
  visitor.own("iteration", iteration);
}

void PriorPosition::reset() {
  epoch = config_->current_epoch;
  samples_seen = config_->num_samples_seen;
  best_validation_loss = config_->best_validation_loss;
  row = iteration = 0;
}

std::string PriorPosition::description() const {
  const bool none_yet = best_validation_loss == config_->best_validation_loss;
  return fmt::format(
      "epoch {} having seen {} samples with best validation loss {}\n"
      "  Going on with epoch {} at sample {}",
      epoch,
      samples_seen,
      none_yet ? "N/A" : short_number(best_validation_loss),
      epoch,
      row);
}

int64_t count_rows(const PriorDataset& data) {
  return data.rows("train") + data.rows("val") + data.rows("test");
}

PriorRun::PriorRun(const LoadedPriorConfig& loaded, const RunProcess& process)
    : TrainingRun({.session = session_options(loaded, process),
                   .texts = {.kind = "prior",
                             .raw_json = loaded.raw_json,
                             .full_json = public_config(loaded.full_json)},
                   .metrics = {metric_names(loaded.config.prior)},
                   .suspects = "embeddings that are far larger than the others"},
                  std::make_unique<PriorPosition>(loaded.config.train),
                  [&](const at::Device& device) { return make_trainer(loaded, device); }),
      config_(loaded.config),
      data_(config_.data, config_.prior),
      position_(position_as<PriorPosition>()),
      trainer_(trainer_as<PriorTrainer>()) {
  position_.rows_per_epoch = data_.rows("train");
}

void PriorRun::open() {
  session_.print_precision(trainer_.precision());
  log_info("data",
           "rows: {} train, {} val, {} test; batches of {}{}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           with_commas(data_.rows("test")),
           config_.data.batch_size,
           of_each_rank(session_.group()));
  checkpoints_.set_data_size({count_rows(data_), "row"});
}

void PriorRun::log_loss(const std::string& folder, const char* label, double loss) {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  session_.tracker().log({{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
                         trainer_.steps(),
                         ShownRecord{{.label = label, .values = {loss}}});
}

/// One batch: rank 0 draws, and the others wait for it.
void PriorRun::log_similarities(const std::string& folder) {
  session_.together("similarities of the validation rows", [&] {
    if (session_.group().is_main()) draw_similarities(folder);
  });
}

void PriorRun::draw_similarities(const std::string& folder) {
  const auto batch = data_.batch("val", 0, config_.data.batch_size);
  if (!batch || batch->size() == 0) return;
  PriorSampleOptions options;
  options.text = {batch->text_embeds, batch->text_encodings};
  options.on_step = [&](size_t step, size_t steps) {
    session_.throw_if_signalled();
    session_.progress().stage(fmt::format("drawing embeddings: step {}/{}", step + 1, steps));
  };
  for (const int64_t steps : config_.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = session_.generator("similarities", /*epoch=*/0, steps);
    const auto similarities =
        embedding_similarities(batch->text_embeds.to(session_.device()),
                               batch->image_embeds.to(session_.device()),
                               trainer_.p_sample_loop(options,
                                                      /*use_non_ema=*/false,
                                                      config_.train.max_batch_size));
    LogRecord record;
    ShownRecord shown;
    for (const auto& [name, value] : similarities) {
      record.emplace_back(fmt::format("metrics/{}/{} [steps={}]", folder, name, steps), value);
      if (const char* label = label_of(name)) shown.push_back({.label = label, .values = {value}});
    }
    shown.insert(shown.begin(), {.label = "cosines in", .values = {steps}, .unit = "steps:"});
    session_.tracker().log(record, trainer_.steps(), shown);
  }
}

LogRecord PriorRun::step_values(double samples_per_second) {
  return {{"tracking/samples-sec", samples_per_second},
          {"tracking/samples-seen", position_.samples_seen}};
}

}  // namespace dalle2
