// SPDX-License-Identifier: MIT
#include "run/decoder_run.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "optim/random.h"
#include "run/pictures.h"
#include "run/step_record.h"

namespace dalle2 {
namespace {

constexpr int64_t kLogEveryIterations = 10;

LogRecord per_unet(const std::vector<int64_t>& unets, const char* what, const auto& value_of) {
  LogRecord record;
  for (const int64_t unet : unets)
    record.emplace_back(fmt::format("Unet {} {}", unet - 1, what), value_of(unet));
  return record;
}

void append(LogRecord& record, LogRecord more) {
  record.insert(
      record.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

ExitCode DecoderRun::run() {
  const ExitCode code = run_epochs();
  if (code == ExitCode::kDone) save_averages();
  saving_.wait();
  if (code == ExitCode::kDone) {
    log_info("train",
             "done: {}, {}",
             counted(config_.train.epochs, "epoch"),
             counted(position_.samples_seen, "sample"));
  }
  return code;
}

void DecoderRun::open() {
  print_start();
  load_examples();
}

ExitCode DecoderRun::run_epochs() {
  recall();
  // A run that had reached its last epoch samples and saves once more, as the reference does.
  while (position_.epoch < config_.train.epochs || position_.next_task != "train") {
    if (position_.next_task == "train" && !train_epoch()) continue;  // it went back
    if (stopped_) return ExitCode::kStopped;
    if (position_.next_task == "val") validate_epoch();
    if (stopped_) return ExitCode::kStopped;
    if (position_.next_task == "eval") position_.next_task = "sample";  // no metric is configured
    sample_epoch();
    if (position_.epoch < config_.train.epochs && stop_asked()) return ExitCode::kStopped;
  }
  return ExitCode::kDone;
}

/// @return false if the run went back to a checkpoint
bool DecoderRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  const auto loader = data_.loader("train", config_.data.batch_size, /*in_order=*/false);
  loader->start_epoch(position_.epoch, position_.loader);
  Timer timer;
  for (auto group = next_group(*loader); !group.empty(); group = next_group(*loader)) {
    const int64_t sample_before = position_.sample;
    saving_.check();
    if (!train_group(*loader, group)) return stop_training(*loader);
    if (!guard_updates(/*settled=*/false)) return false;
    samples_per_second_ = static_cast<double>(position_.sample - sample_before) / timer.seconds();
    if (averages_are_due()) save_averages();
    timer.restart();
    const bool first = position_.iteration == 0;
    if (position_.iteration % kLogEveryIterations == 0) log_training();
    ++position_.iteration;
    if (stop_asked()) return stop_training(*loader);
    const bool due =
        position_.sample > position_.samples_at_last_save + config_.train.save_every_n_samples;
    // Weights whose updates are being skipped may be what is wrong: they take no older file's
    // place.
    if ((due || (config_.train.save_immediately && first)) && !in_a_streak()) {
      save_snapshot();
      timer.restart();
    }
  }
  if (stop_asked()) return stop_training(*loader);
  progress_.finish();
  report_drops(*loader, "train");
  if (!guard_updates(/*settled=*/true)) return false;
  samples_per_epoch_ = position_.sample;
  position_.next_task = "val";
  position_.sample = position_.iteration = position_.samples_at_last_save = 0;
  position_.loader = {};
  return true;
}

/// What was left out so far belongs to this run's records: the next one counts on from here.
bool DecoderRun::stop_training(const DecoderLoader& loader) {
  report_drops(loader, "train");
  save("train", /*is_best=*/false);
  return true;
}

/// None at the end, and if a stop signal came while the data was waited for.
std::optional<Batch> DecoderRun::next_batch(DecoderLoader& loader) {
  try {
    return loader.next();
  } catch (const StoppedError&) {
    return std::nullopt;
  }
}

/// The batches of the next update: /train/grad_accum_every of them, fewer at the end of the epoch.
std::vector<Batch> DecoderRun::next_group(DecoderLoader& loader) {
  std::vector<Batch> group;
  int64_t sample = position_.sample;
  while (static_cast<int64_t>(group.size()) < config_.train.grad_accum_every &&
         sample < config_.train.epoch_samples.value_or(INT64_MAX)) {
    std::optional<Batch> batch =
        timed(&stage_times_, Stage::kData, [&] { return next_batch(loader); });
    // An update by a part of its batches would not be the one of an uninterrupted run.
    if (!batch && stop_requested() != 0) return {};
    if (!batch) break;
    sample += batch->size();
    group.push_back(std::move(*batch));
  }
  return group;
}

/// One update of each trained unet, by the mean over the samples of all batches.
/// @return false if a stop was asked for before the update: the run still stands before the group
bool DecoderRun::train_group(const DecoderLoader& loader, const std::vector<Batch>& group) {
  int64_t total = 0;
  for (const Batch& batch : group) total += batch.size();
  std::vector<at::Tensor> losses(recent_losses_.size());
  int64_t sample = position_.sample;
  for (const Batch& batch : group) {
    if (sample > position_.sample && stop_asked()) return false;
    const DecoderInputs inputs =
        timed(&stage_times_, Stage::kCopy, [&] { return to_inputs(batch, device_); });
    const double share = static_cast<double>(batch.size()) / static_cast<double>(total);
    for (const int64_t unet : trained_unets_) {
      // Addressed by the samples of the epoch so far, so a resumed epoch draws what it would have
      // drawn.
      const at::Generator random = generator(fmt::format("train unet {}", unet), sample);
      const at::Tensor loss = trainer_->step(inputs, unet, random, std::nullopt, share);
      at::Tensor& sum = losses[static_cast<size_t>(unet - 1)];
      sum = sum.defined() ? sum + loss : loss;
    }
    sample += batch.size();
  }
  for (const int64_t unet : trained_unets_) {
    trainer_->update(unet);
    std::deque<at::Tensor>& recent = recent_losses_[static_cast<size_t>(unet - 1)];
    recent.push_back(losses[static_cast<size_t>(unet - 1)]);
    if (recent.size() > kLogEveryIterations) recent.pop_front();
  }
  stage_times_.count_step();
  position_.sample = sample;
  position_.samples_seen += total;
  position_.loader = group.back().position;
  for (const Batch& batch : group) loader.consumed(batch);
  return true;
}

bool DecoderRun::averages_are_due() const {
  const std::optional<int64_t> every = config_.train.post_hoc_ema.save_every_n_steps;
  const auto is_due = [&](bool settled) {
    return trainer_->steps(trained_unets_.front(), settled) % *every == 0;
  };
  // The device is waited for only where the last update, if it was made, makes them due.
  return every && is_due(/*settled=*/false) && is_due(/*settled=*/true);
}

/// Adds the losses, and what was skipped, where anything was. @return the losses
std::vector<double> DecoderRun::log_losses(LogRecord& record) const {
  std::vector<double> losses;
  for (const int64_t unet : trained_unets_) {
    const auto add = [&](const char* what, const LogValue& value) {
      record.emplace_back(fmt::format("Unet {} {}", unet - 1, what), value);
    };
    const LossAverage loss = average_loss(unet);
    losses.push_back(loss.mean);
    if (std::isfinite(loss.mean)) add("Training Loss", loss.mean);
    if (loss.left_out > 0) add("Losses Not Finite", loss.left_out);
    const SkippedUpdates skipped = trainer_->skipped_updates(unet);
    const std::optional<double> loss_scale = trainer_->loss_scale(unet);
    if (skipped.total > 0 || loss_scale) add("Skipped Updates", skipped.total);
    if (loss_scale) add("Loss Scale", *loss_scale);
  }
  return losses;
}

void DecoderRun::log_training() {
  LogRecord record = {{"Epoch", position_.epoch},
                      {"Sample", position_.sample},
                      {"Step", position_.iteration},
                      {"Samples per second", samples_per_second_},
                      {"Samples Seen", position_.samples_seen}};
  if (trainer_->uses_ema()) {
    append(record, per_unet(trained_unets_, "EMA Decay", [&](int64_t unet) {
             return trainer_->ema_decay(unet).value();
           }));
  }
  append(record, per_unet(trained_unets_, "Learning Rate", [&](int64_t unet) {
           return trainer_->learning_rate(unet);
         }));
  append(record, per_unet(trained_unets_, "Grad Norm", [&](int64_t unet) {
           return trainer_->last_grad_norm(unet).item<double>();
         }));
  const std::vector<double> losses = log_losses(record);
  append(record, step_record(stage_times_, device_));
  int64_t skipped = 0;
  for (const int64_t unet : trained_unets_) skipped += trainer_->skipped_updates(unet).total;
  tracker_.log(record, trainer_->steps(trained_unets_.front()));
  progress_.update({.epoch = position_.epoch,
                    .epochs = config_.train.epochs,
                    .sample = position_.sample,
                    .samples_per_epoch = samples_per_epoch_ > 0
                                             ? samples_per_epoch_
                                             : config_.train.epoch_samples.value_or(0),
                    .losses = losses,
                    .skipped = skipped});
}

void DecoderRun::validate_epoch() {
  progress_.pause();
  const auto loader = data_.loader("val", config_.data.batch_size, /*in_order=*/true);
  loader->start_epoch(position_.epoch);
  std::vector<double> sums(static_cast<size_t>(trainer_->num_unets()), 0.0);
  int64_t batches = 0;
  int64_t samples = 0;
  Timer timer;
  while (std::optional<Batch> batch = next_batch(*loader)) {
    loader->consumed(*batch);
    const DecoderInputs inputs = to_inputs(*batch, device_);
    for (const int64_t unet : trained_unets_) {
      // The same draws in every epoch: the losses of two epochs then differ by the weights alone.
      const at::Generator random = make_generator(
          {config_.seed, fmt::format("validate unet {}", unet), /*epoch=*/0, samples}, device_);
      sums[static_cast<size_t>(unet - 1)] +=
          trainer_->evaluate(inputs, unet, random).loss.item<double>();
    }
    if (batches % kLogEveryIterations == 0) {
      log_info("val",
               "Epoch {}/{} Val Step {} -  Sample {} - {:.2f} samples/sec",
               position_.epoch,
               config_.train.epochs,
               batches,
               samples + batch->size(),
               static_cast<double>(samples + batch->size()) / timer.seconds());
    }
    ++batches;
    samples += batch->size();
    if (config_.train.validation_samples && samples >= *config_.train.validation_samples) break;
    if (stop_asked()) return save("val", /*is_best=*/false);
  }
  if (stop_asked()) return save("val", /*is_best=*/false);
  report_drops(*loader, "val");
  log_info("val", "Rank 0 finished validation after {} steps", batches);
  if (batches > 0) {
    double total = 0;
    for (const int64_t unet : trained_unets_)
      total += sums[static_cast<size_t>(unet - 1)] /= static_cast<double>(batches);
    const double mean = total / static_cast<double>(trained_unets_.size());
    if (std::isfinite(mean)) {
      validation_loss_ = mean;
    } else {
      log_warning("val",
                  "the validation loss of epoch {} is not finite: it does not count",
                  position_.epoch);
    }
    tracker_.log(per_unet(trained_unets_,
                          "Validation Loss",
                          [&](int64_t unet) { return sums[static_cast<size_t>(unet - 1)]; }),
                 trainer_->steps(trained_unets_.front()));
  }
  position_.next_task = "eval";
}

void DecoderRun::sample_epoch() {
  log_info("sample", "Sampling and saving after epoch {}", position_.epoch);
  for (auto examples = examples_.rbegin(); examples != examples_.rend(); ++examples)
    log_samples(*examples);
  bool is_best = false;
  if (validation_loss_) {
    const std::vector<double>& earlier = position_.validation_losses;
    is_best =
        earlier.empty() || *validation_loss_ < *std::min_element(earlier.begin(), earlier.end());
    position_.validation_losses.push_back(*validation_loss_);
    validation_loss_.reset();
  }
  save("sample", is_best);
  position_.next_task = "train";
  ++position_.epoch;
}

void DecoderRun::save_snapshot() {
  progress_.pause();
  log_info("ckpt", "Saving snapshot");
  position_.samples_at_last_save = position_.sample;
  save("train", /*is_best=*/false);
  for (const Examples& examples : examples_) {
    if (examples.section == "Train Samples") log_samples(examples);
  }
}

void DecoderRun::log_samples(const Examples& examples) {
  const DecoderInputs inputs = to_inputs(examples.batch, device_);
  DecoderSampleOptions options;
  options.image_embeds = inputs.image_embeds;
  options.text_encodings = inputs.text_encodings;
  options.batch_size = examples.batch.size();
  options.cond_scale = config_.train.cond_scale;
  options.start_at_unet = trained_unets_.front();
  options.stop_at_unet = trained_unets_.back();
  if (options.start_at_unet > 1) options.image = inputs.images;
  // The same noise every time, so that the pictures of two epochs show what training changed.
  options.generator = make_generator({config_.seed, "sample " + examples.section}, device_);
  const at::Tensor drawn =
      trainer_->sample(options, /*use_non_ema=*/false, config_.data.batch_size).cpu();
  const at::Tensor real =
      resize_image_to(examples.batch.images, drawn.size(-1), std::make_pair(0.0, 1.0));

  std::vector<LogImage> pairs;
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < drawn.size(0); ++i) {
    const std::vector<at::Tensor> pair = {real[i], drawn[i].clamp(0, 1)};
    all.insert(all.end(), pair.begin(), pair.end());
    pairs.push_back({encode_png(to_picture(image_grid(pair, 2))),
                     examples.caption_prefix + examples.batch.captions[static_cast<size_t>(i)]});
  }
  tracker_.log_images(pairs, examples.section, trainer_->steps(trained_unets_.front()));
  // All pairs on one sheet, four pairs a row.
  tracker_.log_images({{encode_png(to_picture(image_grid(all, 8))), "real | drawn, in pairs"}},
                      examples.section + " Grid",
                      trainer_->steps(trained_unets_.front()));
}

at::Generator DecoderRun::generator(const std::string& purpose, int64_t step) const {
  return make_generator({config_.seed, purpose, position_.epoch, step}, device_);
}

bool DecoderRun::stop_asked() {
  if (stop_requested() == 0 || stopped_) return stopped_;
  stopped_ = true;
  progress_.finish();
  log_info("train",
           "signal {}: saving, then stopping; run the same command again to go on",
           stop_requested());
  return true;
}

void DecoderRun::report_drops(const DecoderLoader& loader, const std::string& split) {
  if (!loader.dropped().empty()) {
    log_warning("data", "{}: left out in this epoch: {}", split, describe_drops(loader.dropped()));
    LogRecord record;
    for (const auto& [reason, count] : loader.dropped())
      record.emplace_back(fmt::format("Dropped {}: {}", split, reason), count);
    tracker_.log(record, trainer_->steps(trained_unets_.front()));
  }
}

}  // namespace dalle2
