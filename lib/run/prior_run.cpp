// SPDX-License-Identifier: MIT
#include "run/prior_run.h"

#include <torch/torch.h>

#include <cmath>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "optim/random.h"
#include "run/step_record.h"

namespace dalle2 {
namespace {

constexpr int64_t kLogEveryIterations = 10;

PriorInputs to_inputs(const PriorBatch& batch) {
  return {batch.image_embeds, {batch.text_embeds, batch.text_encodings}};
}

/// Mean over the rows of the cosine of the angle between them, as torch's cosine_similarity.
double mean_cosine(const at::Tensor& a, const at::Tensor& b) {
  return at::cosine_similarity(a, b, 1, 1e-6).mean().item<double>();
}

}  // namespace

ExitCode PriorRun::run() {
  print_start();
  recall();
  since_validation_.restart();
  since_save_.restart();
  while (position_.epoch < config_.train.epochs) {
    if (!train_epoch()) {
      save(/*is_best=*/false, /*is_latest=*/true);
      return ExitCode::kStopped;
    }
    ++position_.epoch;
    position_.row = position_.iteration = 0;
  }
  validate();
  save(/*is_best=*/false, /*is_latest=*/true);
  test();
  log_info("train",
           "done: {} epochs, {} samples",
           config_.train.epochs,
           with_commas(position_.samples_seen));
  return ExitCode::kDone;
}

/// @return false if a stop was asked for
bool PriorRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  tracker_.log({{"tracking/epoch", position_.epoch}}, trainer_->steps());
  since_step_.restart();
  while (train_batch()) {
    guard_updates();
    if (stop_asked()) return false;
    if (since_validation_.seconds() > static_cast<double>(config_.data.eval_every_seconds)) {
      validate();
    }
    if (since_save_.seconds() > static_cast<double>(config_.train.save_every_seconds)) {
      save(/*is_best=*/false, /*is_latest=*/true);
    }
  }
  progress_.finish();
  return !stop_asked();
}

/// @return false at the end of the epoch
bool PriorRun::train_batch() {
  const auto batch = timed(&stage_times_, Stage::kData, [&] {
    return data_.batch("train", position_.row, config_.data.batch_size);
  });
  if (!batch) return false;
  if (batch->size() > 0) {
    // Addressed by the rows of the epoch so far, so a resumed epoch draws what it would have drawn.
    const at::Generator random = make_generator(
        {config_.train.random_seed, "train", position_.epoch, position_.row}, device_);
    recent_losses_.push_back(trainer_->step(to_inputs(*batch), random));
    if (recent_losses_.size() > kLogEveryIterations) recent_losses_.pop_front();
    trainer_->update();
    stage_times_.count_step();
  }
  position_.row += batch->rows;
  position_.samples_seen += batch->size();
  samples_per_second_ = static_cast<double>(batch->size()) / since_step_.seconds();
  if (position_.iteration % kLogEveryIterations == 0 && batch->size() > 0) log_training();
  ++position_.iteration;
  since_step_.restart();
  return true;
}

double PriorRun::recent_loss() const {
  const at::Tensor losses =
      at::stack(std::vector<at::Tensor>(recent_losses_.begin(), recent_losses_.end()));
  return losses.masked_select(losses.isfinite()).mean().item<double>();
}

void PriorRun::log_training() {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  LogRecord record = {{"tracking/samples-sec", samples_per_second_},
                      {"tracking/samples-seen", position_.samples_seen}};
  if (const auto decay = trainer_->ema_decay()) record.emplace_back("tracking/ema-decay", *decay);
  const double loss = recent_loss();
  if (std::isfinite(loss))
    record.emplace_back(fmt::format("tracking/training-{}", loss_type), loss);
  record.emplace_back("tracking/learning-rate", trainer_->learning_rate());
  record.emplace_back("tracking/grad-norm", trainer_->last_grad_norm().item<double>());
  const SkippedUpdates skipped = trainer_->skipped_updates();
  if (skipped.total > 0) record.emplace_back("tracking/skipped-updates", skipped.total);
  for (auto& entry : step_record(stage_times_, device_)) record.push_back(std::move(entry));
  tracker_.log(record, trainer_->steps());
  progress_.update({.epoch = position_.epoch,
                    .epochs = config_.train.epochs,
                    .sample = position_.row,
                    .samples_per_epoch = data_.rows("train"),
                    .losses = {loss}});
}

void PriorRun::guard_updates() const {
  const SkippedUpdates skipped = trainer_->skipped_updates(/*settled=*/false);
  if (skipped.in_a_row < config_.train.stop_after_skipped) return;
  throw NonFiniteError(
      "the last {} updates were skipped, for their losses or gradients are not finite (step {}, "
      "epoch {}, sample {})\n"
      "  The checkpoints hold finite weights from before: run the command again to go on from the "
      "last. Lower /train/lr, or set or lower /train/max_grad_norm; /train/stop_after_skipped says "
      "when a run gives up.",
      skipped.in_a_row,
      trainer_->steps(),
      position_.epoch,
      position_.row);
}

std::optional<double> PriorRun::mean_loss(const std::string& split, bool averaged) {
  double sum = 0;
  int64_t samples = 0;
  for (int64_t row = 0;;) {
    const auto batch = data_.batch(split, row, config_.data.batch_size);
    if (!batch) break;
    if (batch->size() > 0) {
      // The same draws every time: two validations then differ by the weights alone.
      const at::Generator random = make_generator(
          {config_.train.random_seed, "validate " + split, /*epoch=*/0, row}, device_);
      sum += trainer_->evaluate(to_inputs(*batch), random, averaged).item<double>() *
             static_cast<double>(batch->size());
    }
    samples += batch->size();
    row += batch->rows;
  }
  if (samples == 0) return std::nullopt;
  return sum / static_cast<double>(samples);
}

void PriorRun::log_loss(const std::string& folder, double loss) {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  tracker_.log({{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
               trainer_->steps() + 1);
}

void PriorRun::validate() {
  progress_.pause();
  Timer timer;
  if (const auto online = mean_loss("val", /*averaged=*/false)) {
    log_loss("online-validation", *online);
    const char* folder = trainer_->uses_ema() ? "ema-validation" : "online-validation";
    log_similarities(folder, "val");
    const double loss =
        trainer_->uses_ema() ? mean_loss("val", /*averaged=*/true).value() : *online;
    if (trainer_->uses_ema()) log_loss(folder, loss);
    tracker_.log({{"tracking/validation length (minutes)", timer.seconds() / 60}},
                 trainer_->steps());
    if (std::isfinite(loss) && loss < position_.best_validation_loss) {
      position_.best_validation_loss = loss;
      save(/*is_best=*/true, /*is_latest=*/false);
    }
  }
  since_validation_.restart();
  since_step_.restart();
}

/// As the reference, after the last epoch; unlike there a good loss of the test rows makes no best
/// checkpoint.
void PriorRun::test() {
  const auto loss = mean_loss("test", trainer_->uses_ema());
  if (loss) log_loss(trainer_->uses_ema() ? "ema-test" : "online-test", *loss);
}

void PriorRun::log_similarities(const std::string& folder, const std::string& split) {
  const auto batch = data_.batch(split, 0, config_.data.batch_size);
  if (!batch || batch->size() == 0) return;
  const at::Tensor images = batch->image_embeds.to(device_);
  const at::Tensor texts = batch->text_embeds.to(device_);
  PriorSampleOptions options;
  options.text = {batch->text_embeds, batch->text_encodings};
  for (const int64_t steps : config_.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator =
        make_generator({config_.train.random_seed, "similarities", /*epoch=*/0, steps}, device_);
    const at::Tensor drawn = trainer_->p_sample_loop(options);
    const double baseline = mean_cosine(texts, images);
    const double with_text = mean_cosine(texts, drawn);
    const auto name = [&](const char* what) {
      return fmt::format("metrics/{}/{} [steps={}]", folder, what, steps);
    };
    tracker_.log({{name("baseline similarity"), baseline},
                  {name("similarity with text"), with_text},
                  {name("similarity with original image"), mean_cosine(images, drawn)},
                  {name("similarity with unrelated caption"), mean_cosine(texts.roll(1, 0), drawn)},
                  {name("difference from baseline similarity"), with_text - baseline}},
                 trainer_->steps() + 1);
  }
}

bool PriorRun::stop_asked() {
  if (stop_requested() == 0 || stopped_) return stopped_;
  stopped_ = true;
  progress_.finish();
  log_info("train",
           "signal {}: saving, then stopping; run the same command again to go on",
           stop_requested());
  return true;
}

}  // namespace dalle2
