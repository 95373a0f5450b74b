// SPDX-License-Identifier: MIT
// Activation checkpointing: trade a second forward pass for memory (Chen et al. 2016).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace dalle2 {

/// A deterministic function of tensors (and of parameters it knows by itself).
using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// `function(inputs)`, of which autograd keeps nothing but the inputs: the backward pass computes
/// the function again, under the autocast settings of the forward pass.
/// @param parameters every tensor that `function` uses beside `inputs` and that needs a gradient
at::Tensor recompute_in_backward(TensorFunction function,
                                 const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& parameters);

}  // namespace dalle2
