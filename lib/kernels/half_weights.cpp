// SPDX-License-Identifier: MIT
#include "kernels/half_weights.h"

#include <ATen/autocast_mode.h>

#include <utility>

namespace dalle2 {
namespace {

thread_local HalfWeightSource* source = nullptr;

}  // namespace

HalfWeightScope::HalfWeightScope(HalfWeightSource& new_source)
    : earlier_(std::exchange(source, &new_source)) {}

HalfWeightScope::~HalfWeightScope() {
  source = earlier_;
}

at::Tensor in_half(const at::Tensor& weight) {
  if (source == nullptr || !weight.defined() ||
      !at::autocast::is_autocast_enabled(weight.device().type())) {
    return weight;
  }
  at::Tensor half = source->half_of(weight);
  return half.defined() ? half : weight;
}

}  // namespace dalle2
