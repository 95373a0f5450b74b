// SPDX-License-Identifier: MIT
#include "run/loop/update_guard.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

bool is_power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

}  // namespace

UpdateGuard::UpdateGuard(RunSession& session,
                         Trainer& trainer,
                         RunPosition& position,
                         RunCheckpoints& checkpoints,
                         const NonFiniteConfig& policy,
                         std::string suspects)
    : session_(session),
      trainer_(trainer),
      position_(position),
      checkpoints_(checkpoints),
      policy_(policy),
      suspects_(std::move(suspects)),
      told_(static_cast<size_t>(trainer.num_parts())) {}

std::string UpdateGuard::prefix(int64_t part) const {
  const std::string& name = trainer_.part_name(part);
  return name.empty() ? "" : name + ": ";
}

/// Warns each time their number has doubled. All ranks know it, and one of them says so.
void UpdateGuard::tell(int64_t part, const SkippedUpdates& skipped) const {
  if (!is_power_of_two(skipped.total) || !session_.group().is_main()) return;
  const bool scales = trainer_.precision().precision == MixedPrecision::fp16;
  log_warning(
      "train",
      "{}an update was skipped, because its loss or gradient is not finite{}; {} skipped so far "
      "(step {}, epoch {}, sample {})",
      prefix(part),
      scales ? " (this is how fp16 finds its loss scale)" : "",
      skipped.total,
      trainer_.steps(part),
      position_.epoch,
      position_.loader.row);
}

bool UpdateGuard::look(bool settled) {
  for (const int64_t part : trainer_.trained_parts()) {
    const SkippedUpdates skipped = trainer_.skipped_updates(part, settled);
    int64_t& told = told_[static_cast<size_t>(part - 1)];
    if (skipped.total == told) continue;
    told = skipped.total;
    tell(part, skipped);
    if (skipped.in_a_row < policy_.after) continue;
    roll_back(part, skipped.in_a_row);
    return false;
  }
  return true;
}

int64_t UpdateGuard::skipped() const {
  int64_t total = 0;
  for (const int64_t part : trainer_.trained_parts()) total += trainer_.skipped_updates(part).total;
  return total;
}

void UpdateGuard::give_up(int64_t part, int64_t in_a_row, const std::string& why) {
  const bool fp16 = trainer_.precision().precision == MixedPrecision::fp16;
  const std::string& name = trainer_.part_name(part);
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
      trainer_.steps(part),
      position_.epoch,
      position_.loader.row,
      why,
      kept,
      suspects_,
      fp16 ? ", or train with /train/mixed_precision \"bf16\"" : "");
}

void UpdateGuard::roll_back(int64_t part, int64_t in_a_row) {
  if (policy_.action == NonFiniteAction::stop) give_up(part, in_a_row, "");
  if (checkpoints_.newest_good().empty()) {
    give_up(part, in_a_row, "; there is no checkpoint of this run to go back to");
  }
  if (checkpoints_.roll_backs() >= policy_.max_roll_backs) {
    give_up(
        part,
        in_a_row,
        fmt::format("; the run went back {} before", counted(checkpoints_.roll_backs(), "time")));
  }
  session_.progress().finish();
  const double factor = trainer_.learning_rate_factor() * policy_.lr_factor;
  std::vector<SkippedUpdates> skipped;
  for (const int64_t each : trainer_.trained_parts())
    skipped.push_back(trainer_.skipped_updates(each));
  if (session_.group().is_main()) {
    log_warning("train",
                "{}{} updates in a row were skipped (epoch {}, sample {}): going back to the last "
                "checkpoint, {} of {} times, with the learning rates multiplied by {}",
                prefix(part),
                in_a_row,
                position_.epoch,
                position_.loader.row,
                checkpoints_.roll_backs() + 1,
                policy_.max_roll_backs,
                factor);
  }
  checkpoints_.go_back();
  trainer_.set_learning_rate_factor(factor);
  size_t i = 0;
  for (const int64_t each : trainer_.trained_parts()) {
    trainer_.set_skipped_updates(each, {.total = skipped[i++].total, .in_a_row = 0});
  }
  remember();
  session_.tracker().log(
      {{"Roll Backs", checkpoints_.roll_backs()}, {"Learning Rate Factor", factor}},
      trainer_.first_steps(),
      ShownRecord{});                    // the warning above said so
  checkpoints_.save(/*is_best=*/false);  // so that a resumed run knows of it
}

void UpdateGuard::remember() {
  for (const int64_t part : trainer_.trained_parts()) {
    told_[static_cast<size_t>(part - 1)] = trainer_.skipped_updates(part).total;
  }
}

}  // namespace dalle2
