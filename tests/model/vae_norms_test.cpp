// SPDX-License-Identifier: MIT
// Norms of a VAE whose maps have a mean of 100 deviations: fixtures of make_group_norm.py.
#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "model/layers.h"
#include "model/vae/vae_enc_dec.h"
#include "vae_support.h"

namespace dalle2::test {
namespace {

// Such a map is rounded to 1e-5 of its deviation, and logits are a tenth of what they sum: PyTorch's planar norm in float32 is off by 4e-5,
// its channels-last one by 5e-4 to 1.4e-2, and gradients by 0.03 to 0.2.
constexpr double kFarMeanTolerance = 2e-4;

/// Fills the module, with the fixture's biases before the norms.
void fill_with_far_means(torch::nn::Module& module, const Fixture& fixture) {
  fill_parameters(module);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, bias] : fixture.below("bias.")) {
    module.named_parameters()[name].copy_(bias);
  }
}

/// Compares gradients of all parameters but the biases before the norms, which change nothing but a mean.
void check_compact_gradients(const torch::nn::Module& module,
                             const std::vector<at::Tensor>& gradients,
                             const Fixture& fixture,
                             const std::string& prefix) {
  size_t number = 0, checked = 0;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = gradients.at(number++);
    if (fixture.has("bias." + item.key()) || !fixture.has(prefix + item.key())) continue;
    expect_close(compact(gradient.defined() ? gradient : at::zeros_like(item.value())),
                 fixture.tensor(prefix + item.key()),
                 kVaeGradientTolerance,
                 prefix + item.key());
    ++checked;
  }
  CHECK(checked >= 8);
}

template <class Module>
void check_far_means(Module& module, const std::string& name) {
  INFO(name);
  const Fixture fixture = load_fixture("group_norm/" + name);
  fill_with_far_means(module, fixture);
  const at::Tensor x = fixture.tensor("x").requires_grad_();
  const at::Tensor y = module.forward(in_order_for_convolutions(x));
  expect_close(y, fixture.tensor("y"), kFarMeanTolerance, "y");
  std::vector<at::Tensor> inputs = module.parameters();
  inputs.push_back(x);
  const bool has_penalty = !fixture.below("penalty.").empty();
  std::vector<at::Tensor> gradients = torch::autograd::grad(
      {y}, inputs, {fixture.tensor("dy")}, std::nullopt, /*create_graph=*/has_penalty);
  const at::Tensor dx = gradients.back();
  gradients.pop_back();
  inputs.pop_back();
  expect_close(dx, fixture.tensor("dx"), kVaeGradientTolerance, "dx");
  check_compact_gradients(module, gradients, fixture, "grad.");
  if (!has_penalty) return;
  const at::Tensor penalty = (dx.flatten(1).norm(2, 1) - 1).square().mean();
  gradients = torch::autograd::grad({penalty}, inputs, {}, std::nullopt, false, true);
  check_compact_gradients(module, gradients, fixture, "penalty.");
}

TEST_CASE("a block of a VAE keeps the digits of maps whose mean is far from zero") {
  VaeBlockImpl block(32, 8, /*gated=*/false), gated(32, 8, /*gated=*/true);
  check_far_means(block, "block");
  check_far_means(gated, "gated_block");
}

TEST_CASE("a discriminator and its gradient penalty keep the digits of such maps") {
  DiscriminatorImpl discriminator(16, 2, 3);
  check_far_means(discriminator, "discriminator");
}

}  // namespace
}  // namespace dalle2::test
