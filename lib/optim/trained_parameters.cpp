// SPDX-License-Identifier: MIT
#include "optim/trained_parameters.h"

#include <torch/torch.h>

namespace dalle2 {

std::vector<std::string> trained_parameters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) names.push_back(item.key());
  }
  return names;
}

void cast_training_params(torch::nn::Module& module, at::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad() && parameter.scalar_type() != dtype) {
      parameter.set_data(parameter.to(dtype));
    }
  }
}

}  // namespace dalle2
