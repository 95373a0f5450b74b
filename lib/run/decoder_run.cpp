// SPDX-License-Identifier: MIT
#include "run/decoder_run.h"

#include <torch/types.h>

#include "base/log.h"
#include "base/stop_signal.h"

namespace dalle2 {
namespace {

/// None at the end, and if a stop signal came while the data was waited for.
std::optional<Batch> next_batch(DecoderLoader& loader) {
  try {
    return loader.next();
  } catch (const StoppedError&) {
    return std::nullopt;
  }
}

}  // namespace

ExitCode DecoderRun::run() {
  const ExitCode code = run_epochs();
  if (code == ExitCode::kDone) checkpoints_.save_averages();
  return checkpoints_.finish(code);
}

ExitCode DecoderRun::run_epochs() {
  if (checkpoints_.start() == StartedFrom::kCheckpoint) guard_.remember();
  // A run that had reached its last epoch samples and saves once more, as the reference does.
  while (position_.epoch < config_.train.epochs || position_.next_task != "train") {
    if (position_.next_task == "train" && !train_epoch()) continue;  // it went back
    if (session_.stopped()) return ExitCode::kStopped;
    if (position_.next_task == "val") validate_epoch();
    if (session_.stopped()) return ExitCode::kStopped;
    if (position_.next_task == "eval") position_.next_task = "sample";  // no metric is configured
    sample_epoch();
    if (session_.stopped()) return ExitCode::kStopped;
    if (position_.epoch < config_.train.epochs && session_.stop_asked()) return ExitCode::kStopped;
  }
  return ExitCode::kDone;
}

/// @return false if the run went back to a checkpoint
bool DecoderRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  const auto loader = data_.loader("train", config_.data.batch_size, /*in_order=*/false);
  loader->start_epoch(position_.epoch, position_.loader);
  since_step_.restart();
  for (auto group = next_group(*loader); !group.empty(); group = next_group(*loader)) {
    const int64_t sample_before = position_.sample;
    checkpoints_.check();
    if (!train_group(*loader, group)) return stop_training(*loader), true;
    if (!guard_.look(/*settled=*/false)) return false;
    samples_per_second_ =
        static_cast<double>(position_.sample - sample_before) / since_step_.seconds();
    checkpoints_.save_averages_if_due();
    since_step_.restart();
    const bool first = position_.iteration == 0;
    if (position_.iteration % kLogEveryIterations == 0) log_training();
    ++position_.iteration;
    if (session_.stop_asked()) return stop_training(*loader), true;
    if (snapshot_is_due(first)) save_snapshot();
  }
  if (session_.stop_asked()) return stop_training(*loader), true;
  session_.progress().finish();
  report_drops(*loader, "train");
  if (!guard_.look(/*settled=*/true)) return false;
  position_.samples_per_epoch = position_.sample;
  position_.restart_epoch();
  position_.next_task = "val";
  return true;
}

/// What was left out so far belongs to this run's records: the next one counts on from here.
void DecoderRun::stop_training(const DecoderLoader& loader) {
  report_drops(loader, "train");
  checkpoints_.save(/*is_best=*/false);
}

/// The batches of the next update: /train/grad_accum_every of them, fewer at the end of the epoch.
std::vector<Batch> DecoderRun::next_group(DecoderLoader& loader) {
  std::vector<Batch> group;
  int64_t sample = position_.sample;
  while (static_cast<int64_t>(group.size()) < config_.train.grad_accum_every &&
         sample < config_.train.epoch_samples.value_or(INT64_MAX)) {
    std::optional<Batch> batch =
        timed(&session_.times(), StepPhase::kData, [&] { return next_batch(loader); });
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
  std::vector<at::Tensor> losses(static_cast<size_t>(trainer_.num_unets()));
  int64_t sample = position_.sample;
  for (const Batch& batch : group) {
    if (sample > position_.sample && session_.stop_asked()) return false;
    const DecoderInputs inputs = timed(
        &session_.times(), StepPhase::kCopy, [&] { return to_inputs(batch, session_.device()); });
    const double share = static_cast<double>(batch.size()) / static_cast<double>(total);
    for (const int64_t unet : trained_unets_) {
      // Addressed by the samples of the epoch so far, so a resumed epoch draws what it would have
      // drawn.
      const at::Generator random =
          session_.generator(fmt::format("train unet {}", unet), position_.epoch, sample);
      const at::Tensor loss = trainer_.step(inputs, unet, random, std::nullopt, share);
      at::Tensor& sum = losses[static_cast<size_t>(unet - 1)];
      sum = sum.defined() ? sum + loss : loss;
    }
    sample += batch.size();
  }
  for (const int64_t unet : trained_unets_) {
    trainer_.update(unet);
    losses_.push(unet, losses[static_cast<size_t>(unet - 1)]);
  }
  session_.times().count_step();
  position_.sample = sample;
  position_.samples_seen += total;
  position_.loader = group.back().position;
  for (const Batch& batch : group) loader.consumed(batch);
  return true;
}

/// Weights whose updates are being skipped may be what is wrong: they take no older file's place.
bool DecoderRun::snapshot_is_due(bool first) const {
  const bool due =
      position_.sample > position_.samples_at_last_save + config_.train.save_every_n_samples;
  return (due || (config_.train.save_immediately && first)) && !guard_.in_a_streak();
}

void DecoderRun::save_snapshot() {
  session_.progress().pause();
  log_info("ckpt", "Saving snapshot");
  position_.samples_at_last_save = position_.sample;
  checkpoints_.save(/*is_best=*/false);
  try {
    pictures_.draw_training_samples();
  } catch (const StoppedError&) {  // the loop stops: the pictures are for people to look at
  }
  since_step_.restart();
}

void DecoderRun::validate_epoch() {
  session_.progress().pause();
  const auto loader = data_.loader("val", config_.data.batch_size, /*in_order=*/true);
  loader->start_epoch(position_.epoch);
  std::vector<double> sums(static_cast<size_t>(trainer_.num_unets()), 0.0);
  int64_t batches = 0;
  int64_t samples = 0;
  Timer timer;
  while (std::optional<Batch> batch = next_batch(*loader)) {
    loader->consumed(*batch);
    const DecoderInputs inputs = to_inputs(*batch, session_.device());
    for (const int64_t unet : trained_unets_) {
      // The same draws in every epoch: the losses of two epochs then differ by the weights alone.
      const at::Generator random =
          session_.generator(fmt::format("validate unet {}", unet), /*epoch=*/0, samples);
      sums[static_cast<size_t>(unet - 1)] +=
          trainer_.evaluate(inputs, unet, random).loss.item<double>();
    }
    samples += batch->size();
    if (batches % kLogEveryIterations == 0) {
      log_info("val",
               "Epoch {}/{} Val Step {} -  Sample {} - {:.2f} samples/sec",
               position_.epoch,
               config_.train.epochs,
               batches,
               samples,
               static_cast<double>(samples) / timer.seconds());
    }
    ++batches;
    if (config_.train.validation_samples && samples >= *config_.train.validation_samples) break;
    if (session_.stop_asked()) break;
  }
  if (session_.stop_asked()) return checkpoints_.save(/*is_best=*/false);
  report_drops(*loader, "val");
  log_info("val", "Rank 0 finished validation after {} steps", batches);
  if (batches > 0) log_validation(sums, batches);
  position_.next_task = "eval";
}

void DecoderRun::sample_epoch() {
  log_info("sample", "Sampling and saving after epoch {}", position_.epoch);
  try {
    pictures_.draw_all();
  } catch (const StoppedError&) {  // the same command draws them, and ends the epoch
    return checkpoints_.save(/*is_best=*/false);
  }
  const bool is_best = position_.is_best();
  if (position_.validation_loss) position_.validation_losses.push_back(*position_.validation_loss);
  position_.validation_loss.reset();
  checkpoints_.save(is_best);
  position_.next_task = "train";
  ++position_.epoch;
}

}  // namespace dalle2
