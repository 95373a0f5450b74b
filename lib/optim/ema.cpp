// SPDX-License-Identifier: MIT
#include "optim/ema.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dalle2 {
namespace {

void check_options(const EmaOptions& options) {
  if (!(options.beta >= 0.0 && options.beta <= 1.0)) {
    throw ConfigError("ema_beta: expected a number in [0, 1], got {}", options.beta);
  }
  if (options.update_after_step < 0) {
    throw ConfigError("ema_update_after_step: expected a number >= 0, got {}",
                      options.update_after_step);
  }
  if (options.update_every < 1) {
    throw ConfigError("ema_update_every: expected a number >= 1, got {}", options.update_every);
  }
  if (!(options.inv_gamma > 0.0)) {
    throw ConfigError("ema_inv_gamma: expected a number > 0, got {}", options.inv_gamma);
  }
  if (!(options.min_value >= 0.0 && options.min_value <= 1.0)) {
    throw ConfigError("ema_min_value: expected a number in [0, 1], got {}", options.min_value);
  }
  if (options.update_model_with_ema_every && *options.update_model_with_ema_every < 1) {
    throw ConfigError("update_model_with_ema_every: expected a number >= 1, got {}",
                      *options.update_model_with_ema_every);
  }
}

}  // namespace

Ema::Ema(const FlatParameters& online, const FlatParameters& average, const EmaOptions& options)
    : options_(options), online_(online.values()), average_(average.values()) {
  check_options(options);
  D2_CHECK(online_.numel() == average_.numel() &&
               online.parameters().size() == average.parameters().size() &&
               online.buffers().size() == average.buffers().size(),
           "the average has another layout than the network: {} and {} elements",
           average_.numel(),
           online_.numel());
  copy_from_online();
}

void Ema::copy_from_online() {
  const torch::NoGradGuard no_grad;
  average_.copy_(online_);
}

void Ema::keep_slice(const FlatSlice& slice) {
  const torch::NoGradGuard no_grad;
  online_ = slice.of(online_);
  average_ = slice.of(average_).clone();
}

double Ema::decay() const {
  const int64_t epoch = step_ - options_.update_after_step - 1;
  if (epoch <= 0) {
    return 0.0;
  }
  const double value =
      1.0 - std::pow(1.0 + static_cast<double>(epoch) / options_.inv_gamma, -options_.power);
  // As torch's clamp: the upper bound wins where the two cross.
  return std::min(std::max(value, options_.min_value), options_.beta);
}

void Ema::update() {
  const torch::NoGradGuard no_grad;
  const int64_t step = step_++;
  if (!initted_) {
    copy_from_online();
    initted_ = true;
    return;
  }
  const bool due = step % options_.update_every == 0;
  if (due && step <= options_.update_after_step) {
    copy_from_online();
    return;
  }
  if (due && options_.beta != 1.0) {
    average_.lerp_(online_, 1.0 - decay());
  }
  if (options_.update_model_with_ema_every && step % *options_.update_model_with_ema_every == 0) {
    online_.copy_(average_);
  }
}

void Ema::set_counters(bool initted, int64_t step) {
  initted_ = initted;
  step_ = step;
}

}  // namespace dalle2
