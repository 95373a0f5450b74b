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

class HalfWeights : public HalfWeightSource {
 public:
  /// @param dtype that of autocast @param gradients of `parameters`; both have to outlive this and the graphs of its passes
  HalfWeights(const FlatParameters& parameters, FlatGradients& gradients, at::ScalarType dtype);
  /// Copies the weights, if they have changed since. Call it before a pass.
  void refresh();
  /// [parameter_span] the copies, in the layout of the flat buffer. Who writes the weights into them calls are_fresh().
  const at::Tensor& values() const { return halves_; }
  void are_fresh() { copied_version_ = version(); }
  bool is_fresh() const { return copied_version_ == version(); }
  at::Tensor half_of(const at::Tensor& weight) override;

  /// A forward pass of this thread with these weights.
  class Pass {
   public:
    explicit Pass(HalfWeights& weights) : weights_(weights), scope_(weights) {}
    ~Pass() { weights_.in_graph_.assign(weights_.in_graph_.size(), at::Tensor()); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    HalfWeights& weights_;
    HalfWeightScope scope_;
  };

 private:
  int64_t version() const;

  int64_t copied_version_ = -1;  // of the weights that the copies have
  at::Tensor values_;            // [parameter_span] float32
  at::Tensor halves_;            // the same in dtype
  FlatGradients& gradients_;
  std::unordered_map<const void*, size_t> number_of_;  // of a weight, by its TensorImpl
  std::vector<at::Tensor> weights_, copies_;  // copies_: in halves_, in the weights' shapes
  std::vector<at::Tensor> in_graph_;          // of the pass: copies with a gradient behind them
};

}  // namespace dalle2
