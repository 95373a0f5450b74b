// SPDX-License-Identifier: MIT
#include "optim/ema_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dalle2 {
namespace {

using Tensors = std::vector<at::Tensor>;

void check_options(const EmaModelOptions& options) {
  const auto check = [](bool good, const char* key, const char* expected, double value) {
    if (!good) {
      throw ConfigError("ema.{}: expected a number {}, got {}", key, expected, value);
    }
  };
  const auto is_share = [](double value) { return value >= 0.0 && value <= 1.0; };
  check(is_share(options.decay), "decay", "in [0, 1]", options.decay);
  check(is_share(options.min_decay), "min_decay", "in [0, 1]", options.min_decay);
  check(options.update_after_step >= 0,
        "update_after_step",
        ">= 0",
        static_cast<double>(options.update_after_step));
  check(options.inv_gamma > 0.0, "inv_gamma", "> 0", options.inv_gamma);
  check(options.power > 0.0, "power", "> 0", options.power);
}

void check_list(const Tensors& shadows, const Tensors& parameters) {
  D2_CHECK(shadows.size() == parameters.size(),
           "an average of {} parameters was given {}",
           shadows.size(),
           parameters.size());
  for (size_t i = 0; i < shadows.size(); ++i) {
    D2_CHECK(shadows[i].sizes() == parameters[i].sizes(),
             "parameter {} has shape {}, its average {}",
             i,
             c10::str(parameters[i].sizes()),
             c10::str(shadows[i].sizes()));
  }
}

Tensors copies(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& tensor : tensors) {
    out.push_back(tensor.detach().clone());
  }
  return out;
}

void step_one_by_one(const Tensors& shadows, const Tensors& parameters, double one_minus_decay) {
  for (size_t i = 0; i < shadows.size(); ++i) {
    if (parameters[i].requires_grad()) {
      shadows[i].sub_((shadows[i] - parameters[i]) * one_minus_decay);
    } else {
      shadows[i].copy_(parameters[i]);
    }
  }
}

/// lerp needs no memory for the differences.
void step_together(const Tensors& shadows, const Tensors& parameters, double one_minus_decay) {
  Tensors averaged, targets;
  for (size_t i = 0; i < shadows.size(); ++i) {
    if (parameters[i].requires_grad()) {
      averaged.push_back(shadows[i]);
      targets.push_back(parameters[i].to(shadows[i].scalar_type()));
    } else {
      shadows[i].copy_(parameters[i], /*non_blocking=*/true);
    }
  }
  if (!averaged.empty()) {
    at::_foreach_lerp_(averaged, targets, one_minus_decay);
  }
}

at::Tensor pinned_copy(const at::Tensor& tensor) {
  at::Tensor out = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  return out.copy_(tensor);
}

}  // namespace

EmaModel::EmaModel(const Tensors& parameters, const EmaModelOptions& options)
    : options_(options), shadows_(copies(parameters)) {
  check_options(options);
}

double EmaModel::get_decay(int64_t optimization_step) const {
  const int64_t s = std::max<int64_t>(0, optimization_step - options_.update_after_step - 1);
  if (s <= 0) {
    return 0.0;
  }
  const auto step = static_cast<double>(s);
  const double value = options_.use_ema_warmup
                           ? 1.0 - std::pow(1.0 + step / options_.inv_gamma, -options_.power)
                           : (1.0 + step) / (10.0 + step);
  // In this order: the lower bound wins where the two cross.
  return std::max(std::min(value, options_.decay), options_.min_decay);
}

void EmaModel::step(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  check_list(shadows_, parameters);
  const double decay = get_decay(++optimization_step_);
  cur_decay_value_ = decay;
  (options_.foreach ? step_together : step_one_by_one)(shadows_, parameters, 1.0 - decay);
}

void EmaModel::copy_to(const Tensors& parameters) const {
  const torch::NoGradGuard no_grad;
  check_list(shadows_, parameters);
  for (size_t i = 0; i < shadows_.size(); ++i) {
    parameters[i].copy_(shadows_[i]);
  }
}

void EmaModel::store(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  check_list(shadows_, parameters);
  stored_.emplace();
  for (const at::Tensor& parameter : parameters) {
    stored_->push_back(parameter.detach().to(at::kCPU, parameter.scalar_type(), false, true));
  }
}

void EmaModel::restore(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  if (!stored_) {
    throw Error(ExitCode::kFailed,
                "This ExponentialMovingAverage has no `store()`ed weights to `restore()`");
  }
  check_list(*stored_, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_((*stored_)[i]);
  }
  stored_.reset();
}

void EmaModel::to(std::optional<at::Device> device, std::optional<at::ScalarType> dtype) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& shadow : shadows_) {
    const bool casts = dtype && shadow.is_floating_point();
    shadow = shadow.to(device.value_or(shadow.device()), casts ? *dtype : shadow.scalar_type());
    if (pinned_ && shadow.is_cpu() && !shadow.is_pinned()) {
      shadow = pinned_copy(shadow);
    }
  }
}

void EmaModel::pin_memory() {
  pinned_ = true;
  to(std::nullopt);
}

void EmaModel::begin_anew(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  check_list(shadows_, parameters);
  for (size_t i = 0; i < shadows_.size(); ++i) {
    shadows_[i].copy_(parameters[i]);
  }
  optimization_step_ = 0;
  cur_decay_value_.reset();
}

void EmaModel::set_state(const EmaModelOptions& options,
                         int64_t optimization_step,
                         const std::optional<Tensors>& shadows) {
  const bool foreach = options_.foreach;
  check_options(options);
  options_ = options;
  options_.foreach = foreach;
  optimization_step_ = optimization_step;
  if (shadows) {
    shadows_ = copies(*shadows);
  }
}

}  // namespace dalle2
