// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "optim/flat_parameters.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    first = register_module("first", torch::nn::Linear(3, 4));
    second = register_module("second", torch::nn::Linear(4, 2));
    register_buffer("seen", at::ones({2}));
    first->weight.set_requires_grad(false);
    first->bias.set_requires_grad(false);
  }
  torch::nn::Linear first = nullptr, second = nullptr;
};

TEST_CASE("the names of what is trained follow from the gradients that are required") {
  const TwoLayers module;
  CHECK(trained_parameters(module) == std::vector<std::string>{"second.weight", "second.bias"});
}

TEST_CASE("flat buffers of what is trained hold nothing of the rest") {
  TwoLayers module;
  module.first->to(at::kBFloat16);
  const void* place = module.first->weight.const_data_ptr();
  const FlatParameters flat(module, trained_parameters(module));
  CHECK(flat.names() == trained_parameters(module));
  CHECK(flat.buffers().size() == 1);
  CHECK(module.first->weight.const_data_ptr() == place);
  CHECK(module.first->weight.scalar_type() == at::kBFloat16);
  CHECK(module.second->weight.const_data_ptr() == flat.values().const_data_ptr());
  FlatGradients gradients(flat);
  module.second->forward(at::ones({1, 4})).sum().backward();
  CHECK(gradients.values().sum().item<double>() == Approx(2 * 4 + 2));
  CHECK_FALSE(module.first->weight.grad().defined());
}

}  // namespace
}  // namespace dalle2
