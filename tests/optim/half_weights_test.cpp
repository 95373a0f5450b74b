// SPDX-License-Identifier: MIT
#include "optim/half_weights.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/cpu_algorithms.h"
#include "optim/optimizer.h"
#include "optim/precision.h"

namespace dalle2 {
namespace {

/// Two linear weights, of which the second is used twice, and a convolution with channels-last filters.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    torch::manual_seed(5);
    first = register_parameter("first", torch::randn({24, 16}) * 0.2);
    bias = register_parameter("bias", torch::randn({24}));
    second = register_parameter("second", torch::randn({24, 24}) * 0.2);
    filters = register_parameter("filters", torch::randn({8, 8, 3, 3}) * 0.2);
    frozen = register_parameter("frozen", torch::randn({24, 24}) * 0.2, /*requires_grad=*/false);
  }
  /// @param x [B, 16] @param map [B, 8, 5, 5]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& map) const {
    at::Tensor h = at::linear(x, in_half(first), in_half(bias));
    h = at::linear(at::silu(at::linear(h, in_half(second))), in_half(second));
    h = at::linear(h, in_half(frozen));
    const at::Tensor y = at::conv2d(map, in_half(filters), {}, 1, 1);
    return h.to(at::kFloat).square().mean() + y.to(at::kFloat).square().mean();
  }
  at::Tensor first, bias, second, filters, frozen;
};
TORCH_MODULE(TwoLayers);

struct Training {
  TwoLayers network;
  FlatParameters parameters{*network};
  FlatGradients gradients{parameters};
  HalfWeights halves{parameters, at::kBFloat16};
  at::Tensor x = torch::ones({6, 16}) * torch::arange(6).unsqueeze(1) * 0.3;
  at::Tensor map = torch::arange(6 * 8 * 25).to(at::kFloat).sin().view({6, 8, 5, 5});

  at::Tensor loss(const std::function<at::Tensor(const at::Tensor&)>& more = nullptr) {
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    const at::Tensor value = network->forward(x, map);
    return more ? more(value) : value;
  }
  at::Tensor loss_with_halves(const std::function<at::Tensor(const at::Tensor&)>& more = nullptr) {
    halves.refresh();
    const HalfWeights::Pass pass(halves, &gradients);
    return loss(more);
  }
};

TEST_CASE("weights kept in half precision give the loss and the gradients of autocast") {
  Training cast, kept;
  for (int pass = 0; pass < 2; ++pass) {  // the second adds to the gradients of the first
    const at::Tensor wanted = cast.loss(), found = kept.loss_with_halves();
    CHECK(found.item<float>() == wanted.item<float>());
    wanted.backward();
    found.backward();
    CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
    CHECK(kept.gradients.received() == cast.gradients.received());
    for (const FlatEntry& entry : kept.parameters.parameters()) {
      const at::Tensor& grad = entry.tensor.grad();
      REQUIRE(grad.defined() == entry.tensor.requires_grad());
      if (grad.defined()) CHECK(at::equal(grad, entry.of(kept.gradients.values())));
    }
  }
  CHECK(kept.gradients.values().abs().sum().item<float>() > 0);
  kept.gradients.zero_grad();
  cast.gradients.zero_grad();
  kept.loss_with_halves().backward();
  cast.loss().backward();
  CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
}

TEST_CASE("a gradient that goes into the flat buffer at once is not copied") {
  Training training;
  std::vector<int> counts(training.parameters.parameters().size(), 0);
  training.gradients.set_listener([&](size_t parameter) { ++counts[parameter]; });
  training.loss_with_halves().backward();
  CHECK(counts == std::vector<int>{1, 1, 1, 1, 0});
  CHECK_FALSE(training.gradients.place_of(0).defined());  // taken
  training.gradients.zero_grad();
  const at::Tensor place = training.gradients.place_of(0);
  REQUIRE(place.defined());
  CHECK(place.data_ptr() == training.gradients.values().data_ptr());
  CHECK_FALSE(training.gradients.place_of(0).defined());  // somebody has it
}

TEST_CASE("a weight that is also used in float32 gets both gradients") {
  const auto with_penalty = [](TwoLayers& network) {
    return
        [&network](const at::Tensor& loss) { return loss + 0.1 * network->first.square().sum(); };
  };
  Training cast, kept;
  cast.loss(with_penalty(cast.network)).backward();
  kept.loss_with_halves(with_penalty(kept.network)).backward();
  CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
}

TEST_CASE("copies follow the weights, whichever way these change") {
  Training training;
  const torch::NoGradGuard no_grad;
  const auto expect_fresh = [&] {
    training.halves.refresh();
    CHECK(at::equal(training.halves.values(),
                    training.parameters.values()
                        .narrow(0, 0, training.parameters.parameter_span())
                        .to(at::kBFloat16)));
  };
  expect_fresh();
  training.network->second.mul_(1.5);  // through the parameter
  expect_fresh();
  training.parameters.values().add_(0.25);  // through the buffer
  expect_fresh();
  training.parameters.parameters()[3].of(training.parameters.values()).fill_(2);  // through a view
  expect_fresh();
}

TEST_CASE("copies follow an update, by LibTorch's operations and by the CPU's own") {
  for (const bool plain : {true, false}) {
    std::optional<PlainAlgorithms> like_a_gpu;
    if (plain) like_a_gpu.emplace();
    Training training;
    Optimizer optimizer(training.parameters, {});
    for (int step = 0; step < 3; ++step) {
      training.loss_with_halves().backward();
      const at::Tensor before = training.halves.values().clone();
      optimizer.step(training.gradients, 1e-1, torch::ones({}), torch::zeros({}));
      optimizer.count_update();
      training.gradients.zero_grad();
      CHECK_FALSE(training.halves.is_fresh());
      training.halves.refresh();
      CHECK_FALSE(at::equal(training.halves.values(), before));
      CHECK(at::equal(training.halves.values(),
                      training.parameters.values()
                          .narrow(0, 0, training.parameters.parameter_span())
                          .to(at::kBFloat16)));
    }
  }
}

TEST_CASE("an update writes copies and average; a skipped one writes neither") {
  Training training;
  Optimizer optimizer(training.parameters, {});
  const int64_t span = training.parameters.parameter_span();
  const at::Tensor average = training.parameters.values().narrow(0, 0, span).clone();
  const at::Tensor wanted = average.clone();
  for (const bool skipped : {false, true, false}) {
    training.loss_with_halves().backward();
    const at::Tensor before = training.parameters.values().clone();
    const at::Tensor halves_before = training.halves.values().clone();
    optimizer.step(
        training.gradients,
        1e-2,
        torch::ones({}),
        torch::full({}, skipped ? 1.0 : 0.0),
        {.average = average, .average_weight = 0.25, .halves = training.halves.values()});
    if (!skipped) optimizer.count_update();
    training.gradients.zero_grad();
    const at::Tensor weights = training.parameters.values().narrow(0, 0, span);
    CHECK(at::equal(training.parameters.values(), before) == skipped);
    CHECK(at::equal(training.halves.values(), halves_before) == skipped);
    CHECK(at::equal(training.halves.values(), weights.to(at::kBFloat16)));
    if (!skipped) wanted.lerp_(weights, 0.25);  // of what has no gradient, too
    CHECK(at::allclose(average, wanted, 1e-6, 1e-7));
  }
}

TEST_CASE("passes without gradients and other threads of work keep what they had") {
  Training training;
  training.halves.refresh();
  const HalfWeights::Pass pass(training.halves, &training.gradients);
  CHECK(in_half(training.network->first).is_same(training.network->first));  // no autocast
  const Autocast autocast(at::kCPU, MixedPrecision::bf16);
  const at::Tensor half = in_half(training.network->first);
  CHECK(half.scalar_type() == at::kBFloat16);
  CHECK(half.requires_grad());
  CHECK(in_half(training.network->first).is_same(half));
  CHECK_FALSE(in_half(training.network->frozen).requires_grad());
  const at::Tensor other = torch::ones({2, 2});
  CHECK(in_half(other).is_same(other));
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(in_half(training.network->first).requires_grad());
}

TEST_CASE("second derivatives go through weights in half precision") {
  Training training;
  training.halves.refresh();
  at::Tensor x = training.x.clone().set_requires_grad(true);
  at::Tensor penalty;
  {
    const HalfWeights::Pass pass(training.halves, &training.gradients);
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    const at::Tensor loss = training.network->forward(x, training.map);
    penalty = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0].square().sum();
  }
  penalty.backward();
  CHECK(training.network->first.grad().abs().sum().item<float>() > 0);
}

}  // namespace
}  // namespace dalle2
