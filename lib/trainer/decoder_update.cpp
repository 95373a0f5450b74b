// SPDX-License-Identifier: MIT
// Updates of a decoder's unets.
#include <torch/torch.h>

#include "optim/finite.h"
#include "trainer/decoder_trainer_state.h"

namespace dalle2 {

void DecoderTrainerState::settle(size_t i) {
  if (unets[i] && unets[i]->settle()) ++steps[i];
}

void DecoderTrainerState::settle_all() {
  for (size_t i = 0; i < unets.size(); ++i) settle(i);
}

void DecoderTrainer::update(int64_t unet_number) {
  check_trained(unet_number);
  const auto i = static_cast<size_t>(unet_number - 1);
  TrainedUnet& unet = *state_->unets[i];
  timed(state_->stage_times, Stage::kOptimizer, [&] {
    state_->settle(i);  // the update before
    unet.make_update(unet.schedule.at(state_->steps[i]));
    if (state_->settles_at_once) state_->settle(i);
  });
}

SkippedUpdates DecoderTrainer::skipped_updates(int64_t unet_number, bool settled) const {
  check_trained(unet_number);
  const auto i = static_cast<size_t>(unet_number - 1);
  if (settled) state_->settle(i);
  return state_->unets[i]->skipped;
}

void DecoderTrainer::set_skipped_updates(int64_t unet_number, const SkippedUpdates& skipped) {
  check_trained(unet_number);
  const auto i = static_cast<size_t>(unet_number - 1);
  state_->settle(i);
  state_->unets[i]->skipped = skipped;
}

std::optional<double> DecoderTrainer::loss_scale(int64_t unet_number) const {
  check_trained(unet_number);
  const auto& scaler = state_->unets[static_cast<size_t>(unet_number - 1)]->scaler;
  return scaler ? std::optional<double>(scaler->current_scale()) : std::nullopt;
}

const PrecisionChoice& DecoderTrainer::precision() const {
  return state_->precision;
}

double DecoderTrainer::learning_rate_factor() const {
  return state_->learning_rate_factor;
}

void DecoderTrainer::set_learning_rate_factor(double factor) {
  state_->learning_rate_factor = factor;
  for (const auto& unet : state_->unets) {
    if (unet) unet->schedule.set_factor(factor);
  }
}

std::optional<std::string> DecoderTrainer::non_finite_part() const {
  state_->settle_all();
  for (size_t i = 0; i < state_->unets.size(); ++i) {
    const auto& unet = state_->unets[i];
    if (!unet) continue;
    if (!all_finite(unet->parameters.values())) return fmt::format("weights of unet {}", i);
    const bool averages_are_finite = (!unet->average || unet->average->is_finite()) &&
                                     (!unet->post_hoc || unet->post_hoc->is_finite());
    if (!averages_are_finite) {
      return fmt::format("averaged weights of unet {}", i);
    }
  }
  return std::nullopt;
}

}  // namespace dalle2
