// SPDX-License-Identifier: MIT
// What a run does about losses and gradients that are NaN or infinite. The trainer skips their
// updates; here they are reported, and after too many in a row the run stops or goes back
// (/train/non_finite).

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "run/loop/training_run.h"

namespace dalle2 {
namespace {

bool is_power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

}  // namespace

/// "unet 1: ", or nothing where the kind has one part.
std::string TrainingRun::part_prefix(int64_t part) const {
  const std::string& name = any_trainer_->part_name(part);
  return name.empty() ? "" : name + ": ";
}

/// Warns each time their number has doubled. All ranks know it, and one of them says so.
void TrainingRun::tell_skips(int64_t part, const SkippedUpdates& skipped) const {
  if (!is_power_of_two(skipped.total) || !session_.group().is_main()) return;
  const bool scales = any_trainer_->precision().precision == MixedPrecision::fp16;
  log_warning(
      "train",
      "{}an update was skipped, because its loss or gradient is not finite{}; {} skipped so far "
      "(step {}, epoch {}, sample {})",
      part_prefix(part),
      scales ? " (this is how fp16 finds its loss scale)" : "",
      skipped.total,
      any_trainer_->steps(part),
      any_position_->epoch,
      any_position_->loader.row);
}

/// Reports skipped updates. @param settled false: as far as is known without waiting for the device
/// @throws TooManySkips
void TrainingRun::look_for_skips(bool settled) {
  for (const int64_t part : any_trainer_->trained_parts()) {
    const SkippedUpdates skipped = any_trainer_->skipped_updates(part, settled);
    int64_t& told = told_skips_[static_cast<size_t>(part - 1)];
    if (skipped.total == told) continue;
    told = skipped.total;
    tell_skips(part, skipped);
    if (skipped.in_a_row >= train_.non_finite.after) throw TooManySkips{part, skipped.in_a_row};
  }
}

/// Of all parts, of the whole run.
int64_t TrainingRun::skipped_updates() const {
  int64_t total = 0;
  for (const int64_t part : any_trainer_->trained_parts())
    total += any_trainer_->skipped_updates(part).total;
  return total;
}

void TrainingRun::give_up(int64_t part, int64_t in_a_row, const std::string& why) {
  const bool fp16 = any_trainer_->precision().precision == MixedPrecision::fp16;
  const std::string& name = any_trainer_->part_name(part);
  const std::string good = checkpoints_.newest_good();
  const std::string kept =
      !good.empty()
          ? fmt::format(
                "The checkpoints hold finite weights: run the command again with --back-to "
                "{} (or another of the snapshots) to resume from it.",
                good)
          : "Nothing was saved.";
  throw NonFiniteError(
      "the last {} updates{} were skipped, because their losses or gradients are not finite (step "
      "{}, epoch {}, sample {}){}\n  {} Lower /train/lr, set or lower /train/max_grad_norm, look "
      "for {}{}. /train/non_finite says when a run gives up.",
      in_a_row,
      name.empty() ? "" : " of " + name,
      any_trainer_->steps(part),
      any_position_->epoch,
      any_position_->loader.row,
      why,
      kept,
      suspects_,
      fp16 ? ", or train with /train/mixed_precision \"bf16\"" : "");
}

/// Goes back to the last checkpoint: the position is another one. @throws NonFiniteError if the run has
/// to stop
void TrainingRun::roll_back(const TooManySkips& skips) {
  const auto& [part, in_a_row] = skips;
  if (train_.non_finite.action == NonFiniteAction::stop) give_up(part, in_a_row, "");
  if (checkpoints_.newest_good().empty()) {
    give_up(part, in_a_row, "; there is no checkpoint of this run to go back to");
  }
  if (checkpoints_.roll_backs() >= train_.non_finite.max_roll_backs) {
    give_up(
        part,
        in_a_row,
        fmt::format("; the run went back {} before", counted(checkpoints_.roll_backs(), "time")));
  }
  session_.progress().finish();
  const double factor = any_trainer_->learning_rate_factor() * train_.non_finite.lr_factor;
  std::vector<SkippedUpdates> skipped;
  for (const int64_t each : any_trainer_->trained_parts())
    skipped.push_back(any_trainer_->skipped_updates(each));
  if (session_.group().is_main()) {
    log_warning("train",
                "{}{} updates in a row were skipped (epoch {}, sample {}): going back to the last "
                "checkpoint, {} of {} times, with the learning rates multiplied by {}",
                part_prefix(part),
                in_a_row,
                any_position_->epoch,
                any_position_->loader.row,
                checkpoints_.roll_backs() + 1,
                train_.non_finite.max_roll_backs,
                factor);
  }
  checkpoints_.go_back();
  any_trainer_->set_learning_rate_factor(factor);
  size_t i = 0;
  for (const int64_t each : any_trainer_->trained_parts()) {
    any_trainer_->set_skipped_updates(each, {.total = skipped[i++].total, .in_a_row = 0});
  }
  remember_skips();
  session_.tracker().log(
      {{"Roll Backs", checkpoints_.roll_backs()}, {"Learning Rate Factor", factor}},
      any_trainer_->first_steps(),
      ShownRecord{});                    // the warning above said so
  checkpoints_.save(/*is_best=*/false);  // so that a resumed run knows of it
}

/// Counts what was skipped so far as reported: after a checkpoint was loaded.
void TrainingRun::remember_skips() {
  for (const int64_t part : any_trainer_->trained_parts()) {
    told_skips_[static_cast<size_t>(part - 1)] = any_trainer_->skipped_updates(part).total;
  }
}

}  // namespace dalle2
