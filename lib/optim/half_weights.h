// SPDX-License-Identifier: MIT
// The weights of a FlatParameters in half precision, for passes under autocast: one cast of the whole buffer instead of one of each
// weight, and gradients that go from half precision straight into the FlatGradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "kernels/half_weights.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

class HalfWeights {
 public:
  /// @param dtype that of autocast
  HalfWeights(const FlatParameters& parameters, at::ScalarType dtype);
  /// Copies the weights, if they have changed since. Call it before a pass.
  void refresh();
  /// [parameter_span] the copies, in the layout of the flat buffer. Who writes the weights into them calls are_fresh().
  const at::Tensor& values() const { return halves_; }
  void are_fresh() { copied_version_ = version(); }
  bool is_fresh() const { return copied_version_ == version(); }

  /// A forward pass of this thread with these weights.
  class Pass final : public HalfWeightSource {
   public:
    /// @param gradients of the weights, which its backward pass fills and which has to outlive its graph;
    /// null: autograd hands the gradients on, in float32
    Pass(const HalfWeights& weights, FlatGradients* gradients);
    at::Tensor half_of(const at::Tensor& weight) override;

   private:
    const HalfWeights& weights_;
    FlatGradients* gradients_;
    std::vector<at::Tensor> in_graph_;  // copies with a gradient behind them
    HalfWeightScope scope_;
  };

 private:
  int64_t version() const;

  int64_t copied_version_ = -1;                        // of the weights that the copies have
  at::Tensor values_;                                  // [parameter_span] float32
  at::Tensor halves_;                                  // the same in dtype
  std::unordered_map<const void*, size_t> number_of_;  // of a weight, by its TensorImpl
  std::vector<at::Tensor> weights_, copies_;  // copies_: in halves_, in the weights' shapes
};

}  // namespace dalle2
