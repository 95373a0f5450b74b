// SPDX-License-Identifier: MIT
// Weights in the type in which products under autocast compute. Autocast casts a weight in each pass, and its gradient back. A source
// keeps the copies of all weights instead, and puts the gradients where they belong.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

class HalfWeightSource {
 public:
  virtual ~HalfWeightSource() = default;
  /// The copy of a weight in autocast's type, from which gradients flow to the weight; undefined if there is none.
  virtual at::Tensor half_of(const at::Tensor& weight) = 0;
};

/// While one lives, in_half() on this thread asks `source`.
class HalfWeightScope {
 public:
  explicit HalfWeightScope(HalfWeightSource& source);
  ~HalfWeightScope();
  HalfWeightScope(const HalfWeightScope&) = delete;
  HalfWeightScope& operator=(const HalfWeightScope&) = delete;

 private:
  HalfWeightSource* earlier_;
};

/// What a product multiplies by: under autocast the copy of a weight, if a source has one, else `weight` itself. A view of a weight has
/// no copy: take the view of the result.
at::Tensor in_half(const at::Tensor& weight);

}  // namespace dalle2
