// SPDX-License-Identifier: MIT
#include "run/decoder_run.h"

#include <torch/types.h>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "metrics/script_archive.h"
#include "run/decoder_evaluation.h"

namespace dalle2 {
namespace {

/// Nothing at the end of the data, or if a stop signal came while it was waited for: then
/// `interrupted` is set, on all ranks.
std::optional<Batch> next_batch(ProcessGroup& group, DecoderLoader& loader, bool& interrupted) {
  const ProcessGroup::BusyScope busy(group, "waiting for data");
  try {
    return loader.next();
  } catch (const StoppedError&) {
    interrupted = true;
    return std::nullopt;
  }
}

}  // namespace

ExitCode DecoderRun::run_epochs() {
  // A run that had reached its last epoch samples and saves once more, as the reference does.
  while (position_.epoch < config_.train.epochs || position_.next_task != "train") {
    if (position_.next_task == "train" && !train_epoch()) continue;  // it went back
    if (session_.stopped()) return ExitCode::kStopped;
    if (position_.next_task == "val") validate_epoch();
    if (session_.stopped()) return ExitCode::kStopped;
    if (position_.next_task == "eval") evaluate_epoch();
    sample_epoch();
    if (position_.epoch < config_.train.epochs && session_.stop_asked()) return ExitCode::kStopped;
  }
  return ExitCode::kDone;
}

/// @return false if the run went back to a checkpoint
bool DecoderRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  const auto loader = data_.loader("train", config_.data.batch_size, /*in_order=*/false);
  loader->start_epoch(position_.epoch, position_.loader);
  restart_step_clock();
  bool interrupted = false;
  auto next = [&, sample = position_.sample]() mutable -> std::optional<Batch> {
    if (sample >= config_.train.epoch_samples.value_or(INT64_MAX)) return std::nullopt;
    std::optional<Batch> batch = next_batch(session_.group(), *loader, interrupted);
    if (batch) sample += batch->samples_of_step;
    return batch;
  };
  for (auto group = next_group(next); !group.empty(); group = next_group(next)) {
    // An update from only a part of its batches would not be that of an uninterrupted run.
    if (std::ssize(group) < config_.train.grad_accum_every && interrupted) break;
    const int64_t sample_before = position_.sample;
    checkpoints_.check();
    if (!train_group(*loader, group)) break;
    const bool first = position_.iteration == 0;
    if (!after_update(position_.sample - sample_before)) return false;
    if (session_.stop_asked()) break;
    if (snapshot_is_due(first)) save_snapshot();
  }
  session_.progress().finish();
  report_drops(*loader, "train");
  if (session_.stop_asked()) return true;
  if (!guard_.look(/*settled=*/true)) return false;
  position_.samples_per_epoch = position_.sample;
  position_.restart_epoch();
  position_.next_task = "val";
  return true;
}

/// One update of each trained unet, from the mean over the samples of all batches.
/// @return false if a stop was asked for before the update: the run still stands before the group
bool DecoderRun::train_group(const DecoderLoader& loader, const std::vector<Batch>& group) {
  const auto samples =
      pass_group(group, trained_unets_, [&](const Batch& batch, int64_t before, double share) {
        train_batch(batch, position_.sample + before + batch.samples_before, share);
      });
  if (!samples) return false;
  for (const int64_t unet : trained_unets_) update(unet);
  position_.sample += *samples;
  position_.samples_seen += *samples;
  position_.loader = group.back().position;
  for (const Batch& batch : group) loader.consumed(batch);
  return true;
}

/// Gradients of each trained unet from this rank's batch.
/// @param place of its first sample in the epoch: addresses what is drawn, so that a resumed epoch,
/// or one of another number of ranks, draws the same
void DecoderRun::train_batch(const Batch& batch, int64_t place, double share) {
  const DecoderInputs inputs = timed(
      &session_.times(), StepPhase::kCopy, [&] { return to_inputs(batch, session_.device()); });
  for (const int64_t unet : trained_unets_) {
    const at::Generator random =
        session_.generator(fmt::format("train unet {}", unet), position_.epoch, place);
    trainer_.step(inputs, unet, random, std::nullopt, share);
  }
}

/// While updates are being skipped the weights may be at fault: they must not replace an older
/// file.
bool DecoderRun::snapshot_is_due(bool first) const {
  const bool due =
      position_.sample > position_.samples_at_last_save + config_.train.save_every_n_samples;
  return (due || (config_.train.save_immediately && first)) && !guard_.in_a_streak();
}

void DecoderRun::save_snapshot() {
  session_.progress().pause();
  log_info("ckpt", "Saving snapshot of epoch {}, sample {}", position_.epoch, position_.sample);
  position_.samples_at_last_save = position_.sample;
  checkpoints_.save(/*is_best=*/false);
  try {
    pictures_.draw_training_samples();
  } catch (const StoppedError&) {  // the loop stops: the pictures are for people to look at
  }
  restart_step_clock();
}

void DecoderRun::validate_epoch() {
  session_.progress().pause();
  const auto loader = data_.loader("val", config_.data.batch_size, /*in_order=*/true);
  loader->start_epoch(position_.epoch);
  std::vector<double> sums(static_cast<size_t>(trainer_.num_unets()), 0.0);
  int64_t steps = 0, batches = 0;
  int64_t samples = 0;
  Timer timer;
  bool interrupted = false;
  while (std::optional<Batch> batch = next_batch(session_.group(), *loader, interrupted)) {
    loader->consumed(*batch);
    if (batch->size() > 0) {
      add_validation_losses(*batch, samples + batch->samples_before, sums);
      ++batches;
    }
    samples += batch->samples_of_step;
    const double samples_per_second = static_cast<double>(samples) / timer.seconds();
    const std::string where = fmt::format("Epoch {}/{} Val Step {} - Sample {} - {} samples/sec",
                                          position_.epoch,
                                          config_.train.epochs,
                                          steps,
                                          samples,
                                          short_number(samples_per_second, /*digits=*/3));
    if (steps == 0) log_info("val", "{}", where);
    session_.progress().stage(where);
    ++steps;
    if (config_.train.validation_samples && samples >= *config_.train.validation_samples) break;
    if (session_.stop_asked()) break;
  }
  if (session_.stop_asked()) return;
  report_drops(*loader, "val");
  session_.progress().pause();
  log_info("val", "Rank 0 finished validation after {} steps", steps);
  sums.push_back(static_cast<double>(batches));
  sums = session_.group().sum(sums, "validation losses");
  batches = static_cast<int64_t>(sums.back());
  if (batches > 0) log_validation(sums, batches, samples);
  position_.next_task = "eval";
}

/// Adds the loss of each trained unet. @param place of the first sample in the validation
void DecoderRun::add_validation_losses(const Batch& batch,
                                       int64_t place,
                                       std::vector<double>& sums) {
  const DecoderInputs inputs = to_inputs(batch, session_.device());
  for (const int64_t unet : trained_unets_) {
    // The same draws in every epoch: the losses of two epochs then differ by the weights alone.
    const at::Generator random =
        session_.generator(fmt::format("validate unet {}", unet), /*epoch=*/0, place);
    sums[static_cast<size_t>(unet - 1)] +=
        trainer_.evaluate(inputs, unet, random).loss.item<double>();
  }
}

/// Ends by StoppedError at a stop signal; a resumed run then begins the evaluation anew.
void DecoderRun::evaluate_epoch() {
  if (metrics_) {
    log_info("eval", "Evaluating epoch {}: {}", position_.epoch, metrics_->description());
    log_metrics(compute_metrics());
    restart_step_clock();
  }
  position_.next_task = "sample";
}

/// What goes wrong with the pictures is no reason to lose a run: it is told, and the run goes on.
/// @return on rank 0; nothing on the others
MetricValues DecoderRun::compute_metrics() {
  ProcessGroup& group = session_.group();
  const HeldAverages averages = trainer_.hold_averages();
  metrics_->reset();
  std::string fault;
  session_.together("drawing for the metrics", [&] {
    try {
      show_pairs({.data = &data_,
                  .count = config_.evaluate.n_evaluation_samples,
                  .batch_size = config_.data.batch_size,
                  .seed = config_.seed,
                  .draw = {config_.train.cond_scale,
                           trained_unets_.front(),
                           trained_unets_.back(),
                           session_.device()},
                  .sample = [this](const auto& options) { return trainer_.sample(options); },
                  .on_step =
                      [this](const std::string& where) {
                        session_.throw_if_signalled();
                        session_.progress().stage(where);
                      }},
                 {group.rank(), group.size()},
                 *metrics_);
    } catch (const StoppedError&) {
      throw;
    } catch (const NetworkError&) {
      throw;
    } catch (const std::exception& error) {
      fault = last_message(error);
    }
  });
  session_.progress().pause();
  for (const std::string& each : group.gather_texts(fault, "faults of the evaluation")) {
    if (each.empty()) continue;
    metrics_->reset();
    return {.values = {}, .faults = {each}, .notes = {}};
  }
  metrics_->gather(group);
  MetricValues found;
  session_.together("computing the metrics", [&] {
    if (!group.is_main()) return;
    found = compute_figures(*metrics_);
    keep_real_features(config_, *metrics_);
  });
  metrics_->reset();  // all features of all ranks: no memory for the next epoch
  return found;
}

void DecoderRun::sample_epoch() {
  log_info("sample", "Sampling and saving after epoch {}", position_.epoch);
  pictures_.draw_all();
  const bool is_best = position_.is_best();
  if (position_.validation_loss) position_.validation_losses.push_back(*position_.validation_loss);
  position_.validation_loss.reset();
  checkpoints_.save(is_best);
  position_.next_task = "train";
  ++position_.epoch;
}

}  // namespace dalle2
