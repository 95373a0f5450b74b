// SPDX-License-Identifier: MIT
#include "run/vae/vae_run.h"

#include <torch/types.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_text.h"
#include "run/device/device.h"

namespace dalle2 {

ExitCode VaeRun::run_epochs() {
  while (true) {
    if (position_.actions_due != 0) finish_step();  // a stop cut it off
    if (is_done() || position_.epoch >= config_.train.epochs) break;
    if (!train_epoch()) continue;  // it went back
    if (session_.stop_asked()) return ExitCode::kStopped;
    if (is_done()) break;
    ++position_.epoch;
    position_.restart_epoch();
    dropped_in_epoch_.clear();
  }
  save_model();                            // the last one, whatever its number
  log_info("train", "training complete");  // the reference's last words
  return ExitCode::kDone;
}

/// @return false if the run went back to a checkpoint
bool VaeRun::train_epoch() {
  restart_step_clock();
  epochs_ = counted_epochs();
  const bool from_begin = position_.row == 0;
  const int64_t seen_before = position_.samples_seen;
  auto next = steps_from(position_.row, [this](int64_t row) { return next_batch("train", row); });
  while (!is_done()) {
    const auto group = next_group(next);
    if (group.empty()) break;
    checkpoints_.check();
    const int64_t part =
        position_.discriminator_is_due ? VaeTrainer::kDiscriminator : VaeTrainer::kAutoencoder;
    const auto samples = pass_group(
        group, {part}, [&](const VaeRankBatch& each, int64_t, double share) { pass(each, share); });
    if (!samples) return true;
    for (const VaeRankBatch& each : group) position_.row += each.rows_of_step;
    position_.samples_seen += *samples;
    // Where none of the files could be read a stop has to be noticed anyway.
    if (*samples > 0 && !update_part(part, *samples)) return false;
    if (session_.stop_asked()) return true;
  }
  session_.progress().finish();
  if (from_begin && position_.samples_seen == seen_before && !is_done()) {
    from_outside([this] { data_.throw_nothing_usable(); });
  }
  return guard_.look(/*settled=*/true);
}

/// The discriminator's part of a step begins with the step that its loss counts from.
bool VaeRun::has_gan() const {
  return trainer_.has_discriminator() && position_.step >= config_.train.discr_start_step;
}

std::optional<VaeRankBatch> VaeRun::next_batch(const std::string& split, int64_t row) {
  const int64_t of_each = config_.data.batch_size;
  auto batch = rank_batch<ImageBatch>(
      session_.group(), data_.rows(split), row, of_each, [&](int64_t first, int64_t count) {
        auto found = data_.batch(split, position_.epoch, first, count);
        data_.read_ahead(split, position_.epoch, first + session_.group().size() * count, count);
        return found;
      });
  if (batch) batch->batch.drops.report(split, dropped_, dropped_in_epoch_);
  return batch;
}

/// Gradients of this rank's share of a batch, for the part whose turn it is.
void VaeRun::pass(const VaeRankBatch& batch, double share) {
  at::Tensor images = batch.batch.images;
  copy_to_device(session_.device(), {&images});
  const at::Generator random = session_.generator("train", position_.epoch, batch.row);
  if (!position_.discriminator_is_due) {
    position_.diagnostics.add(trainer_.step_autoencoder(images, random, has_gan(), share),
                              config_.vae.codes());
    return;
  }
  const int64_t every = config_.train.apply_grad_penalty_every;
  const bool with_penalty = every > 0 && position_.step % every == 0;
  trainer_.step_discriminator(images, random, with_penalty, share);
}

/// The update of a part, and after the last one of a step what follows it.
/// @return false if the run went back to a checkpoint
bool VaeRun::update_part(int64_t part, int64_t samples) {
  update(part);
  trainer_.learn_codes(part, session_.generator("codes", position_.epoch, position_.row));
  const bool is_autoencoders = part == VaeTrainer::kAutoencoder;
  if (is_autoencoders) {
    position_.diagnostics.end_update(session_.group(),
                                     session_.device(),
                                     config_.vae.codes(),
                                     config_.train.log_every_n_updates);
  }
  position_.discriminator_is_due = is_autoencoders && has_gan();
  if (position_.discriminator_is_due) return true;
  trainer_.end_step();
  if (!after_update(samples)) return false;
  ++position_.step;
  finish_step();
  return true;
}

int64_t VaeRun::epochs() const {
  return epochs_ > 0 ? epochs_ : counted_epochs();
}

/// From a position between two updates.
int64_t VaeRun::counted_epochs() const {
  const auto divided_up = [](int64_t count, int64_t by) { return (count + by - 1) / by; };
  // An epoch ends with a short batch, and with a short group of batches.
  const int64_t rows_of_part =
      config_.train.grad_accum_every * config_.data.batch_size * session_.group_size();
  const int64_t of_epoch = data_.rows("train"), steps = config_.train.num_train_steps;
  int64_t parts = steps - position_.step;
  if (trainer_.has_discriminator()) {
    parts += std::max<int64_t>(steps - std::max(position_.step, config_.train.discr_start_step), 0);
  }
  if (position_.discriminator_is_due) --parts;
  parts -= divided_up(std::max<int64_t>(of_epoch - position_.row, 0), rows_of_part);
  const int64_t later = divided_up(std::max<int64_t>(parts, 0), divided_up(of_epoch, rows_of_part));
  return std::min(config_.train.epochs, position_.epoch + 1 + later);
}

void VaePosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("step", step);
  visitor.field("samples_seen", samples_seen);
  visitor.own("row", row);
  visitor.own("iteration", iteration);
  int64_t due = discriminator_is_due ? 1 : 0;
  visitor.own("discriminator_is_due", due);
  discriminator_is_due = due != 0;
  std::optional<double> best;
  if (std::isfinite(best_validation_loss)) best = best_validation_loss;
  visitor.own("best_validation_loss", best);
  best_validation_loss = best.value_or(std::numeric_limits<double>::infinity());
  diagnostics.fields(visitor);
}

std::string VaePosition::description() const {
  return fmt::format("step {}, epoch {}, having seen {} samples", step, epoch, samples_seen);
}

}  // namespace dalle2
