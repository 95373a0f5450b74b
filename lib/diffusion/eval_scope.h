// SPDX-License-Identifier: MIT
// A module in eval mode for a scope.
#pragma once

#include <torch/nn/module.h>

namespace dalle2 {

class EvalScope {
 public:
  explicit EvalScope(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvalScope() { module_.train(was_training_); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

}  // namespace dalle2
