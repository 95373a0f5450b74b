// SPDX-License-Identifier: MIT
// What holds for a pass through a network: eval mode, no gradients, inference mode.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace dalle2 {

/// A module in eval mode for a scope. Afterwards each of its submodules is back in its earlier
/// mode, even if it was put into another module meanwhile.
class EvalScope {
 public:
  explicit EvalScope(torch::nn::Module& module) {
    bool trains = false;
    for (auto& part : module.modules()) {
      trains = trains || part->is_training();
      modes_.emplace_back(part, part->is_training());
    }
    if (trains) module.eval();  // else others may be reading the modes
  }
  ~EvalScope() {
    // Outermost first: train() also sets the children, which then get their own mode back.
    for (auto& [module, was_training] : modes_) {
      if (module->is_training() != was_training) module->train(was_training);
    }
  }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// No gradients for as long as it lives. Under autocast, weights that are cast meanwhile are not
/// cached either: the pass that learns would reuse those casts, through which no gradient flows.
class NoGradPass {
 public:
  NoGradPass() : caches_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoGradPass() { at::autocast::set_autocast_cache_enabled(caches_); }
  NoGradPass(const NoGradPass&) = delete;
  NoGradPass& operator=(const NoGradPass&) = delete;

 private:
  at::NoGradGuard no_grad_;
  bool caches_;
};

/// What `pass` returns, computed in LibTorch's inference mode, in which operations cost less than without gradients alone. The result
/// is a tensor like any other.
template <typename Pass>
at::Tensor inferred(Pass&& pass) {
  at::Tensor result;
  {
    const c10::InferenceMode inference;
    result = std::forward<Pass>(pass)();
  }
  return result.clone();
}

}  // namespace dalle2
