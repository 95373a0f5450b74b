// SPDX-License-Identifier: MIT
#include "run/prior_run.h"

#include <torch/types.h>

#include <cmath>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

PriorInputs to_inputs(const PriorBatch& batch) {
  return {batch.image_embeds, {batch.text_embeds, batch.text_encodings}};
}

}  // namespace

ExitCode PriorRun::run_epochs() {
  since_validation_.restart();
  since_latest_.restart();
  while (position_.epoch < config_.train.epochs) {
    if (!train_epoch()) continue;  // it went back
    if (session_.stop_asked()) return ExitCode::kStopped;
    ++position_.epoch;
    position_.restart_epoch();
  }
  finish();
  return ExitCode::kDone;
}

/// As in the reference, after the last epoch; but here a good loss of the test rows makes no best
/// checkpoint.
void PriorRun::finish() {
  validate();
  save_latest();
  const auto loss = mean_loss("test", trainer_.uses_ema());
  session_.progress().pause();
  if (loss) {
    log_loss(trainer_.uses_ema() ? "ema-test" : "online-test", "test loss", *loss);
  }
}

/// @return false if the run went back to a checkpoint
bool PriorRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  session_.tracker().log({{"tracking/epoch", position_.epoch}}, trainer_.steps(), ShownRecord{});
  restart_step_clock();
  auto next = [this, row = position_.row]() mutable {
    auto batch = data_.batch("train", row, config_.data.batch_size);
    if (batch) row += batch->rows;
    return batch;
  };
  for (auto group = next_group(next); !group.empty(); group = next_group(next)) {
    checkpoints_.check();
    if (!after_update(train_group(group))) return false;
    if (session_.stop_asked()) return true;
    if (since_validation_.seconds() > static_cast<double>(config_.data.eval_every_seconds)) {
      validate();
    }
    const bool due =
        since_latest_.seconds() > static_cast<double>(config_.train.save_every_seconds);
    // While updates are being skipped the weights may be at fault: they must not replace an older
    // file.
    if (due && !guard_.in_a_streak()) save_latest();
  }
  session_.progress().finish();
  return guard_.look(/*settled=*/true);
}

/// One update, from the mean over the samples of all batches. @return these samples
int64_t PriorRun::train_group(const std::vector<PriorBatch>& group) {
  int64_t total = 0;
  for (const PriorBatch& batch : group) total += batch.size();
  at::Tensor loss;
  for (const PriorBatch& batch : group) {
    if (batch.size() > 0) {
      // Addressed by the rows of the epoch so far, so a resumed epoch draws what it would have
      // drawn.
      const at::Generator random = session_.generator("train", position_.epoch, position_.row);
      const double share = static_cast<double>(batch.size()) / static_cast<double>(total);
      const at::Tensor part = trainer_.step(to_inputs(batch), random, std::nullopt, share);
      loss = loss.defined() ? loss + part : part;
    }
    position_.row += batch.rows;
  }
  position_.samples_seen += total;
  if (loss.defined()) update(1, loss);
  return total;
}

void PriorRun::save_latest() {
  log_info("ckpt",
           "Saving the latest: epoch {}, sample {}",
           position_.epoch,
           position_.sample_of_epoch());
  checkpoints_.save(/*is_best=*/false);
  since_latest_.restart();
  restart_step_clock();
}

std::optional<double> PriorRun::mean_loss(const std::string& split, bool averaged) {
  double sum = 0;
  int64_t samples = 0;
  for (int64_t row = 0;;) {
    session_.throw_if_stop_asked();
    const auto batch = data_.batch(split, row, config_.data.batch_size);
    if (!batch) break;
    if (batch->size() > 0) {
      // The same draws every time: two validations then differ by the weights alone.
      const at::Generator random = session_.generator("validate " + split, /*epoch=*/0, row);
      sum += trainer_.evaluate(to_inputs(*batch), random, averaged).item<double>() *
             static_cast<double>(batch->size());
    }
    samples += batch->size();
    row += batch->rows;
    session_.progress().stage(
        fmt::format("loss of the split {}: {}", split, counted(samples, "sample")));
  }
  if (samples == 0) return std::nullopt;
  return sum / static_cast<double>(samples);
}

void PriorRun::validate() {
  session_.progress().pause();
  Timer timer;
  const bool has_average = trainer_.uses_ema();
  if (const auto online = mean_loss("val", /*averaged=*/false)) {
    log_loss("online-validation",
             has_average ? "validation loss without averaging" : "validation loss",
             *online);
    const char* folder = has_average ? "ema-validation" : "online-validation";
    log_similarities(folder);
    const double loss = has_average ? mean_loss("val", /*averaged=*/true).value() : *online;
    if (has_average) log_loss(folder, "validation loss", loss);
    session_.tracker().log({{"tracking/validation length (minutes)", timer.seconds() / 60}},
                           trainer_.steps(),
                           ShownRecord{});
    if (std::isfinite(loss) && loss < position_.best_validation_loss) {
      position_.best_validation_loss = loss;
      log_info("ckpt", "Saving the best so far");
      checkpoints_.save(/*is_best=*/true, /*is_latest=*/false);
    }
  }
  since_validation_.restart();
  restart_step_clock();
}

}  // namespace dalle2
