// SPDX-License-Identifier: MIT
// The parameters of a module that are trained: those that require a gradient.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace dalle2 {

/// Their names, in the order of registration.
std::vector<std::string> trained_parameters(const torch::nn::Module& module);

/// cast_training_params of diffusers: converts them to `dtype`, in place; all others and the
/// buffers stay as they are. So a network whose frozen part is held in half precision trains in
/// full precision.
void cast_training_params(torch::nn::Module& module, at::ScalarType dtype = at::kFloat);

}  // namespace dalle2
