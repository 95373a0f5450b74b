// SPDX-License-Identifier: MIT
// Products with weights. A frozen weight may be held in a lower type than the numbers it meets: it
// is cast for the product and, in the backward pass, cast again. What autograd keeps is the weight
// as it is held, so that half the bits take half the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace dalle2 {

/// While one lives, the weights that this thread uses do not change. What is derived from a weight, such
/// as standardised filters or copies in autocast's type, is then computed once: a sampler asks its network
/// hundreds of times.
class WeightsAtRest {
 public:
  WeightsAtRest();
  ~WeightsAtRest();
  WeightsAtRest(const WeightsAtRest&) = delete;
  WeightsAtRest& operator=(const WeightsAtRest&) = delete;
};

/// `view` of a weight, laid out as it is multiplied: of a weight at rest that is done once.
/// @param weight of a layer, which has one such view
at::Tensor view_of_weight(const at::Tensor& weight,
                          const std::function<at::Tensor(const at::Tensor&)>& view);

/// x weight^T + bias: at::linear. @param x [..., in]; weight [out, in]; bias [out] or undefined
at::Tensor weighted_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// at::bmm. @param x [n, rows, in]; weight [n, in, out], a view of a layer's weight
at::Tensor weighted_bmm(const at::Tensor& x, const at::Tensor& weight);

struct ConvSettings {
  int64_t stride = 1;
  int64_t padding = 0;
  /// Each filter to mean 0 and variance 1 first (Qiao et al. 2019).
  bool standardize = false;
};

/// at::conv2d. @param x [B, in, H, W]; weight [out, in, k, k]; bias [out] or undefined
at::Tensor weighted_conv(const at::Tensor& x,
                         const at::Tensor& weight,
                         const at::Tensor& bias,
                         const ConvSettings& settings);

}  // namespace dalle2
