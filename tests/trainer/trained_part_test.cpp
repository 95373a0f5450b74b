// SPDX-License-Identifier: MIT
#include "trainer/trained_part.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <functional>
#include <limits>

namespace dalle2 {
namespace {

TrainedPart part_of(const std::shared_ptr<torch::nn::Module>& network) {
  const PartOptions options{{}, {.base_lr = 1e-2}, std::numeric_limits<double>::infinity()};
  return {{.prefix = "", .network = network, .options = options}, trained_parameters(*network)};
}

/// Forward and backward of a batch that is one pass.
void run_pass(TrainedPart& part, const std::function<at::Tensor()>& loss) {
  part.backward(Pass{}, part.forward(Pass{}, loss));
}

TEST_CASE("a backward pass fills the gradients of its part") {
  const auto network = std::make_shared<torch::nn::LinearImpl>(3, 2);
  TrainedPart part = part_of(network);
  run_pass(part, [&] { return network->forward(at::ones({1, 3})).sum(); });
  CHECK(at::equal(network->weight.grad(), at::ones({2, 3})));
}

TEST_CASE("with a loss scale the moments are of the unscaled gradient") {
  const auto network = std::make_shared<torch::nn::LinearImpl>(3, 2);
  {
    const torch::NoGradGuard no_grad;  // outputs far from 0, where fp16 would have few digits
    network->weight.copy_(torch::tensor({{0.3, -0.2, 0.1}, {-0.25, 0.4, -0.35}}));
    network->bias.copy_(torch::tensor({0.2, -0.1}));
  }
  TrainedPart part = part_of(network);
  part.scaler.emplace(at::kCPU);
  part.scaler->set_state(1024, 0);
  // The gradient of the sum of squares, in float32 by hand.
  const at::Tensor x = torch::tensor({{0.5, -1.0, 2.0}}, at::kFloat);
  const at::Tensor y = (at::linear(x, network->weight, network->bias)).detach();
  const at::Tensor gradient = 2 * y.t().matmul(x);  // [2, 3]
  part.settings.precision = MixedPrecision::fp16;
  run_pass(part, [&] { return network->forward(x).to(at::kFloat).square().sum(); });
  part.update(0.0);
  CHECK(part.settle());
  const OptimizerOptions defaults;
  const auto state = part.optimizer.state(0);
  REQUIRE(state);
  // fp16 keeps 11 bits: three products of it are off by less than 2e-3.
  CHECK(at::allclose(state->exp_avg, (1 - defaults.beta1) * gradient, 4e-3, 1e-4));
  CHECK(at::allclose(state->exp_avg_sq, (1 - defaults.beta2) * gradient.square(), 8e-3, 1e-5));
  CHECK(part.grad_norm.item<double>() ==
        Approx(std::sqrt((gradient.square().sum() + (2 * y).square().sum()).item<double>()))
            .epsilon(4e-3));
}

}  // namespace
}  // namespace dalle2
