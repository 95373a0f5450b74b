// SPDX-License-Identifier: MIT
// A pass through a network beside the one that learns.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace dalle2 {

/// No gradients for as long as it lives. Under autocast nothing is kept of the weights that are
/// cast meanwhile either: the pass that learns would take those casts, which lead to no gradient.
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

}  // namespace dalle2
