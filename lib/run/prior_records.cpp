// SPDX-License-Identifier: MIT
// How a prior run starts, where it stands, and what it logs; the loop is in prior_run.cpp.
#include <torch/torch.h>

#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "run/config_secrets.h"
#include "run/model_weights.h"
#include "run/prior_run.h"
#include "run/prior_similarities.h"
#include "run/step_record.h"

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
      "  Resuming at sample: {}",
      epoch,
      samples_seen,
      none_yet ? "N/A" : fmt::format("{}", best_validation_loss),
      row);
}

PriorRun::PriorRun(const LoadedPriorConfig& loaded, bool quiet)
    : config_(loaded.config),
      data_(config_.data, config_.prior),
      position_(config_.train, data_.rows("train")),
      session_({.tracker = config_.tracker,
                .train = config_.train,
                .seed = config_.seed,
                .quiet = quiet},
               position_),
      made_trainer_(make_trainer(loaded, session_.device())),
      trainer_(*made_trainer_),
      losses_(trainer_.num_parts(), session_.device()),
      checkpoints_(session_,
                   trainer_,
                   position_,
                   losses_,
                   config_.train,
                   {.kind = "prior",
                    .raw_json = loaded.raw_json,
                    .full_json = without_url_secrets(loaded.full_json)}),
      guard_(session_,
             trainer_,
             position_,
             checkpoints_,
             config_.train.non_finite,
             "embeddings that are far larger than the others") {
  trainer_.set_step_times(&session_.times());
}

void PriorRun::open() {
  session_.print_start(trainer_.precision());
  log_info("data",
           "rows: {} train, {} val, {} test; batches of {}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           with_commas(data_.rows("test")),
           config_.data.batch_size);
}

void PriorRun::log_loss(const std::string& folder, double loss) {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  session_.tracker().log({{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
                         trainer_.steps());
}

void PriorRun::log_similarities(const std::string& folder) {
  const auto batch = data_.batch("val", 0, config_.data.batch_size);
  if (!batch || batch->size() == 0) return;
  PriorSampleOptions options;
  options.on_step = [&](size_t, size_t) { session_.throw_if_stop_asked(); };
  for (const int64_t steps : config_.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = session_.generator("similarities", /*epoch=*/0, steps);
    const auto similarities =
        prior_similarities(*batch, options, session_.device(), [&](const auto& of_batch) {
          return trainer_.p_sample_loop(of_batch);
        });
    LogRecord record;
    for (const auto& [name, value] : similarities)
      record.emplace_back(fmt::format("metrics/{}/{} [steps={}]", folder, name, steps), value);
    session_.tracker().log(record, trainer_.steps());
  }
}

void PriorRun::log_training() {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  LogRecord record = {{"tracking/samples-sec", samples_per_second_},
                      {"tracking/samples-seen", position_.samples_seen}};
  if (const auto decay = trainer_.ema_decay()) record.emplace_back("tracking/ema-decay", *decay);
  const LossAverage loss = losses_.average(1);
  if (std::isfinite(loss.mean))
    record.emplace_back(fmt::format("tracking/training-{}", loss_type), loss.mean);
  if (loss.left_out > 0) record.emplace_back("tracking/losses-not-finite", loss.left_out);
  record.emplace_back("tracking/learning-rate", trainer_.learning_rate());
  if (const at::Tensor norm = trainer_.last_grad_norm(); norm.defined())
    record.emplace_back("tracking/grad-norm", norm.item<double>());
  const int64_t skipped = guard_.skipped();
  const std::optional<double> loss_scale = trainer_.loss_scale();
  if (skipped > 0 || loss_scale) record.emplace_back("tracking/skipped-updates", skipped);
  if (loss_scale) record.emplace_back("tracking/loss-scale", *loss_scale);
  for (auto& entry : step_record(session_.times(), session_.device()))
    record.push_back(std::move(entry));
  session_.tracker().log(record, trainer_.steps());
  session_.progress().update({.epoch = position_.epoch,
                              .epochs = config_.train.epochs,
                              .sample = position_.row,
                              .samples_per_epoch = data_.rows("train"),
                              .losses = {loss.mean},
                              .skipped = skipped});
}

}  // namespace dalle2
