// SPDX-License-Identifier: MIT
// What a run does about losses and gradients that are NaN or infinite. The trainer skips their
// updates; here they are told of, and after too many in a row the run stops or goes back
// (/train/non_finite).
#include <torch/types.h>

#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "run/decoder_run.h"

namespace dalle2 {
namespace {

bool is_power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

}  // namespace

DecoderRun::LossAverage DecoderRun::average_loss(int64_t unet_number) const {
  const std::deque<at::Tensor>& recent = recent_losses_[static_cast<size_t>(unet_number - 1)];
  if (recent.empty()) return {};
  const at::Tensor losses = at::stack(std::vector<at::Tensor>(recent.begin(), recent.end()));
  const at::Tensor finite = losses.masked_select(losses.isfinite());
  const double mean = finite.numel() > 0 ? finite.mean().item<double>() : std::nan("");
  return {.mean = mean, .left_out = losses.numel() - finite.numel()};
}

/// Tells of skipped updates, each time their number has doubled.
void DecoderRun::tell_skipped(int64_t unet, const SkippedUpdates& skipped) const {
  if (!is_power_of_two(skipped.total)) return;
  const bool scales = trainer_->precision().precision == MixedPrecision::fp16;
  log_warning(
      "train",
      "unet {}: an update was skipped, for its loss or gradient is not finite{}; {} skipped so far "
      "(step {}, epoch {}, sample {})",
      unet - 1,
      scales ? " (fp16 finds its loss scale by that)" : "",
      skipped.total,
      trainer_->steps(unet),
      position_.epoch,
      position_.sample);
}

bool DecoderRun::guard_updates(bool settled) {
  for (const int64_t unet : trained_unets_) {
    const SkippedUpdates skipped = trainer_->skipped_updates(unet, settled);
    int64_t& told = told_skipped_[static_cast<size_t>(unet - 1)];
    if (skipped.total == told) continue;
    told = skipped.total;
    tell_skipped(unet, skipped);
    if (skipped.in_a_row < config_.train.non_finite.after) continue;
    roll_back(unet, skipped.in_a_row);
    return false;
  }
  return true;
}

bool DecoderRun::in_a_streak() const {
  for (const int64_t unet : trained_unets_) {
    if (trainer_->skipped_updates(unet).in_a_row > 0) return true;
  }
  return false;
}

void DecoderRun::give_up(int64_t unet, int64_t in_a_row, const std::string& why) const {
  const bool fp16 = trainer_->precision().precision == MixedPrecision::fp16;
  const std::string kept =
      tracker_.own_checkpoints().empty()
          ? "Nothing was saved."
          : "The checkpoints hold finite weights: run the command again to go on from the last.";
  throw NonFiniteError(
      "the last {} updates of unet {} were skipped, for their losses or gradients are not finite "
      "(step {}, epoch {}, sample {}){}\n"
      "  {} Lower /train/lr, set or lower /train/max_grad_norm, look for damaged images and "
      "embeddings with `dalle2-train shards check`{}. /train/non_finite says when a run gives up.",
      in_a_row,
      unet - 1,
      trainer_->steps(unet),
      position_.epoch,
      position_.sample,
      why,
      kept,
      fp16 ? ", or train with /train/mixed_precision \"bf16\"" : "");
}

void DecoderRun::roll_back(int64_t unet, int64_t in_a_row) {
  const NonFiniteConfig& policy = config_.train.non_finite;
  if (policy.action == NonFiniteAction::stop) give_up(unet, in_a_row, "");
  saving_.wait();
  const std::vector<std::string> candidates = tracker_.own_checkpoints();
  if (candidates.empty()) {
    give_up(unet, in_a_row, "; there is no checkpoint of this run to go back to");
  }
  if (roll_backs_ >= policy.max_roll_backs) {
    give_up(unet, in_a_row, fmt::format("; the run went back {} times before", roll_backs_));
  }
  progress_.finish();
  const int64_t roll_backs = roll_backs_ + 1;
  const double factor = trainer_->learning_rate_factor() * policy.lr_factor;
  std::vector<SkippedUpdates> skipped;
  for (const int64_t number : trained_unets_) skipped.push_back(trainer_->skipped_updates(number));
  log_warning("train",
              "unet {}: {} updates in a row were skipped (epoch {}, sample {}): going back to the "
              "last checkpoint, {} of {} times, with the learning rates times {}",
              unet - 1,
              in_a_row,
              position_.epoch,
              position_.sample,
              roll_backs,
              policy.max_roll_backs,
              factor);
  go_on_from(candidates);
  forget_later_averages();
  // What the checkpoint says of these is older than what has happened since.
  roll_backs_ = roll_backs;
  trainer_->set_learning_rate_factor(factor);
  for (size_t i = 0; i < trained_unets_.size(); ++i) {
    trainer_->set_skipped_updates(trained_unets_[i], {.total = skipped[i].total, .in_a_row = 0});
  }
  remember_skipped();
  tracker_.log({{"Roll Backs", roll_backs_}, {"Learning Rate Factor", factor}},
               trainer_->steps(trained_unets_.front()));
  save(position_.next_task, /*is_best=*/false);  // a start from here knows of it
}

/// Snapshots of /train/post_hoc_ema from behind the point the run went back to are none of its past
/// any more.
void DecoderRun::forget_later_averages() const {
  const std::filesystem::path folder =
      std::filesystem::path(tracker_.data_path()) / kAveragesFolder;
  if (!config_.train.post_hoc_ema.save_every_n_steps || !std::filesystem::exists(folder)) return;
  const std::string last = averages_name(trainer_->steps(trained_unets_.front()));
  std::vector<std::filesystem::path> later;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string() > last) later.push_back(entry.path());
  }
  for (const std::filesystem::path& path : later) std::filesystem::remove(path);
}

void DecoderRun::remember_skipped() {
  for (const int64_t unet : trained_unets_) {
    told_skipped_[static_cast<size_t>(unet - 1)] = trainer_->skipped_updates(unet).total;
  }
}

void DecoderRun::check_state() const {
  const std::optional<std::string> part = trainer_->non_finite_part();
  if (!part) return;
  throw NonFiniteError(
      "the {} are not finite (epoch {}, sample {})\n"
      "  Nothing of this state was saved: the last checkpoint is from before, unless the run began "
      "with such weights. Lower /train/lr, or start from another checkpoint; `dalle2-train fsck` "
      "tells which are whole.",
      *part,
      position_.epoch,
      position_.sample);
}

}  // namespace dalle2
