// SPDX-License-Identifier: MIT
#include "optim/average_rule.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace dalle2 {
namespace {

/// Calls `work(own, theirs)` for pieces of both: what is made beside them would else be as large as they
/// are. After a step that was skipped `theirs` is `own`, whatever it holds.
template <class Work>
void in_pieces(const at::Tensor& own,
               const at::Tensor& theirs,
               const at::Tensor& skipped,
               const Work& work) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  const at::Tensor stays = skipped.defined() ? skipped != 0 : skipped;
  for (int64_t begin = 0; begin < own.numel(); begin += kPiece) {
    const int64_t size = std::min(kPiece, own.numel() - begin);
    const at::Tensor piece = own.narrow(0, begin, size), of = theirs.narrow(0, begin, size);
    work(piece, stays.defined() ? at::where(stays, piece, of) : of);
  }
}

/// own += share (theirs - own), at a share of 1 a copy. @param skipped AverageRule::update()
void follow(const at::Tensor& own,
            const at::Tensor& theirs,
            double share,
            const at::Tensor& skipped) {
  const auto take = [share](const at::Tensor& piece, const at::Tensor& of) {
    share == 1.0 ? piece.copy_(of) : piece.lerp_(of, share);
  };
  skipped.defined() ? in_pieces(own, theirs, skipped, take) : take(own, theirs);
}

}  // namespace

double EmaPytorchRule::decay_of(int64_t step) const {
  const int64_t epoch = step - config_.ema_update_after_step - 1;
  if (epoch <= 0) return 0.0;
  const double value =
      1.0 - std::pow(1.0 + static_cast<double>(epoch) / config_.ema_inv_gamma, -config_.ema_power);
  // As torch's clamp: the upper bound wins where the two cross.
  return std::min(std::max(value, config_.ema_min_value), config_.ema_beta);
}

void EmaPytorchRule::update(const at::Tensor& average,
                            const at::Tensor& weights,
                            const at::Tensor& skipped) const {
  const torch::NoGradGuard no_grad;
  const bool due = step_ % config_.ema_update_every == 0;
  if (!initted_ || (due && step_ <= config_.ema_update_after_step)) {
    follow(average, weights, 1.0, skipped);
    return;
  }
  if (due && config_.ema_beta != 1.0) follow(average, weights, 1.0 - decay_of(step_ + 1), skipped);
  const auto& every = config_.update_model_with_ema_every;
  if (every && step_ % *every == 0) follow(weights, average, 1.0, skipped);
}

double DiffusersRule::decay_of(int64_t step) const {
  const int64_t s = std::max<int64_t>(0, step - config_.update_after_step - 1);
  if (s <= 0) return 0.0;
  const auto steps = static_cast<double>(s);
  const double value = config_.use_ema_warmup
                           ? 1.0 - std::pow(1.0 + steps / config_.inv_gamma, -config_.power)
                           : (1.0 + steps) / (10.0 + steps);
  // In this order: the lower bound wins where the two cross.
  return std::max(std::min(value, config_.decay), config_.min_decay);
}

std::optional<double> EmaPytorchRule::share_of_next() const {
  const auto& every = config_.update_model_with_ema_every;
  const bool averages = initted_ && step_ % config_.ema_update_every == 0 &&
                        step_ > config_.ema_update_after_step && config_.ema_beta != 1.0 &&
                        !(every && step_ % *every == 0);
  const double share = 1.0 - decay_of(step_ + 1);
  constexpr double kHalf =
      0.5;  // from here on lerp counts from the weights: a share of 1 is a copy
  return averages && share < kHalf ? std::optional<double>(share) : std::nullopt;
}

void DiffusersRule::update(const at::Tensor& average,
                           const at::Tensor& weights,
                           const at::Tensor& skipped) const {
  const torch::NoGradGuard no_grad;
  const double taken = 1.0 - decay();
  if (config_.foreach) {
    follow(average, weights, taken, skipped);
    return;
  }
  in_pieces(average, weights, skipped, [taken](const at::Tensor& own, const at::Tensor& theirs) {
    own.sub_((own - theirs) * taken);
  });
}

double PowerRule::decay() const {
  return std::pow(1.0 - 1.0 / static_cast<double>(step_ + 1), gamma_ + 1.0);
}

void PowerRule::update(const at::Tensor& average,
                       const at::Tensor& weights,
                       const at::Tensor& skipped) const {
  const torch::NoGradGuard no_grad;
  follow(average, weights, 1.0 - decay(), skipped);
}

std::unique_ptr<AverageRule> make_average_rule(const AveragesConfig& config) {
  if (config.ema.kind == EmaKind::diffusers) return std::make_unique<DiffusersRule>(config.ema);
  return std::make_unique<EmaPytorchRule>(config);
}

}  // namespace dalle2
