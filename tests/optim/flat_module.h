// SPDX-License-Identifier: MIT
// A module whose parameters a test names.
#pragma once

#include <torch/torch.h>

#include "checkpoint/state_dict.h"
#include "optim/average_rule.h"
#include "optim/flat_parameters.h"
#include "optim/optimizer.h"

namespace dalle2::test {

// For parameters after twenty or thirty updates: single float32 operations in another order
// (torch's loop divides where the fused kernel multiplies), a few ulp an update.
inline constexpr double kTrajectoryTolerance = 5e-6;

struct FlatModule : torch::nn::Module {
  /// Parameters with these names and values, in this order.
  explicit FlatModule(const StateDict& parameters) {
    for (const auto& [name, value] : parameters) register_parameter(name, value.clone());
  }

  at::Tensor parameter(const std::string& name) {
    return named_parameters(/*recurse=*/false)[name];
  }

  /// Runs a backward pass that gives each named parameter exactly this gradient.
  void backward(const StateDict& gradients) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, gradient] : gradients) loss = loss + (parameter(name) * gradient).sum();
    if (!gradients.empty()) loss.backward();
  }
};

/// An update that is made and counted.
inline void update(Optimizer& optimizer,
                   FlatGradients& gradients,
                   double lr,
                   const at::Tensor& divisor = at::ones({})) {
  optimizer.step(gradients, lr, divisor, at::zeros({}));
  optimizer.count_update();
}

/// What makes a rule of each kind. @param config of ema_pytorch's
inline std::vector<std::function<std::unique_ptr<AverageRule>()>> rules_of_all_kinds(
    const AveragesConfig& config) {
  EmaConfig one_call;
  one_call.foreach = true;
  return {[config] { return std::make_unique<EmaPytorchRule>(config); },
          [] { return std::make_unique<DiffusersRule>(EmaConfig{}); },
          [one_call] { return std::make_unique<DiffusersRule>(one_call); },
          [] { return std::make_unique<PowerRule>(6.94); }};
}

}  // namespace dalle2::test
