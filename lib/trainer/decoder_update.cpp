// SPDX-License-Identifier: MIT
// The update of a unet's weights, and what is settled when it is known that it was made. A loss or
// gradient that is not finite skips it; the device finds that out by itself, the host hears of it
// when it asks, at the latest before the next update.
#include <torch/torch.h>

#include "optim/finite.h"
#include "optim/grad_norm.h"
#include "trainer/decoder_trainer_state.h"

namespace dalle2 {
namespace {

/// [] float32: 1 unless norm and loss are finite. Their sum is if and only if both are.
at::Tensor find_inf(const at::Tensor& norm, const at::Tensor& loss) {
  const at::Tensor sum = loss.defined() ? norm + loss : norm;
  return sum.isfinite().logical_not().to(at::kFloat);
}

}  // namespace

void TrainedUnet::add_loss(const at::Tensor& more) {
  loss = loss.defined() ? loss + more : more;
}

void TrainedUnet::make_update(double lr) {
  const torch::NoGradGuard no_grad;
  grad_norm = dalle2::grad_norm(gradients.values());
  if (scaler) grad_norm = grad_norm / scaler->scale();
  const at::Tensor found_inf = find_inf(grad_norm, loss);
  at::Tensor divisor = clip_divisor(grad_norm, max_grad_norm);
  if (scaler) divisor = divisor * scaler->scale();
  optimizer.step(gradients, lr, divisor, found_inf);
  if (scaler) scaler->update(found_inf);
  gradients.zero_grad();
  loss.reset();
  outcome.post(found_inf);
}

bool TrainedUnet::settle() {
  if (!outcome.pending()) return false;
  if (!outcome.take()) {
    ++skipped.total;
    ++skipped.in_a_row;
    return false;
  }
  skipped.in_a_row = 0;
  optimizer.count_update();
  if (average) average->update();
  if (post_hoc) post_hoc->update();
  return true;
}

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
