// SPDX-License-Identifier: MIT
#include "model/frozen_weight.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "model/layers.h"
#include "model/lora.h"
#include "model/unet/unet.h"
#include "support/fixture.h"
#include "support/host_counts.h"
#include "unet_support.h"

namespace dalle2 {
namespace {

// Products of the same float32 numbers, summed up by the same kernels.
constexpr double kTolerance = 1e-6;

/// Output and gradient of the input with a weight held in `held` and with the same numbers in
/// float32.
template <class Product>
void expect_same(const at::Tensor& x,
                 const at::Tensor& weight,
                 at::ScalarType held,
                 Product product) {
  const auto results = [&](const at::Tensor& w) {
    const at::Tensor input = x.clone().set_requires_grad(true);
    const at::Tensor out = product(input, w);
    (out * test::wave(out.sizes(), 0.9)).sum().backward();
    return std::pair(out.detach(), input.grad());
  };
  const at::Tensor low = weight.to(held);
  const auto [out, grad] = results(low);
  const auto [expected_out, expected_grad] = results(low.to(at::kFloat));
  CHECK(out.scalar_type() == at::kFloat);
  test::expect_close(out, expected_out, kTolerance, "output");
  test::expect_close(grad, expected_grad, kTolerance, "gradient of the input");
}

TEST_CASE("a frozen weight in half precision gives the products and gradients of its numbers") {
  const at::Tensor bias = test::wave({5}, 0.4);
  for (const at::ScalarType held : {at::kBFloat16, at::kHalf}) {
    expect_same(test::wave({2, 7, 6}), test::wave({5, 6}, 0.3), held, [&](auto& x, auto& w) {
      return weighted_linear(x, w, bias);
    });
    expect_same(test::wave({3, 4, 6}), test::wave({3, 6, 5}, 0.3), held, [](auto& x, auto& w) {
      return weighted_bmm(x, w);
    });
    for (const ConvSettings& settings : {ConvSettings{},
                                         ConvSettings{.stride = 2},
                                         ConvSettings{.padding = 1, .standardize = true}}) {
      expect_same(
          test::wave({2, 4, 8, 8}), test::wave({5, 4, 3, 3}, 0.3), held, [&](auto& x, auto& w) {
            return weighted_conv(x, w, bias, settings);
          });
    }
  }
}

TEST_CASE("filters of weights at rest are standardised once, and anew when they may have changed") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = test::wave({2, 4, 8, 8});
  at::Tensor weight = test::wave({5, 4, 3, 3}, 0.3);
  const auto product = [&] {
    return weighted_conv(x, weight, {}, {.padding = 1, .standardize = true});
  };
  const at::Tensor before = product();
  {
    const WeightsAtRest outer;
    CHECK(at::equal(product(), before));
    weight.copy_(test::wave({5, 4, 3, 3}, 0.9));
    const WeightsAtRest inner;
    CHECK(at::equal(product(), before));  // what was derived first
    const at::AutoGradMode with_grad(true);
    CHECK_FALSE(at::equal(product(), before));  // a pass with gradients derives its own
  }
  const at::Tensor after = product();
  CHECK_FALSE(at::equal(after, before));
  test::expect_close(product(), after, 0, "the same weight");
}

TEST_CASE("weights at rest take no more memory with each pass") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = test::wave({2, 4, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  DownsampleImpl downsample(4, 6);
  const at::Tensor weight = test::wave({5, 4, 3, 3}, 0.3);
  const auto pass = [&] {
    downsample.forward(x);
    weighted_conv(x, weight, {}, {.padding = 1, .standardize = true});
  };
  const WeightsAtRest rest;
  pass();
  CHECK(test::host_counts_of([&] {
          for (int i = 0; i < 3; ++i) pass();
        }).left_bytes == 0);
}

TEST_CASE("filters that lie in the order of convolutions are not held a second time") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = test::wave({2, 16, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::shared_ptr<ConvLayerImpl> conv = make_conv(16, 24, 3, 1, 1);
  const auto held = [&] {
    const WeightsAtRest rest;
    return test::host_counts_of([&] { conv->forward(x); }).left_bytes;
  };
  const at::Tensor before = conv->forward(x);
  CHECK(held() == static_cast<int64_t>(conv->weight.nbytes()));
  lay_filters_in_order(*conv);
  CHECK(held() == 0);
  test::expect_close(conv->forward(x), before, 1e-6, "the same convolution");
}

TEST_CASE("weights at rest are cast once under autocast, with the same results") {
  const at::NoGradGuard no_grad;
  const at::Tensor x = test::wave({4, 8}), map = test::wave({2, 4, 8, 8});
  at::Tensor matrix = test::wave({6, 8}, 0.7), filters = test::wave({5, 4, 3, 3}, 0.3);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto pass = [&] {
    return std::pair(weighted_linear(x, matrix, {}),
                     weighted_conv(map, filters, {}, {.padding = 1}));
  };
  const auto [line, product] = pass();
  CHECK(line.scalar_type() == at::kBFloat16);
  const auto check = [&] {
    const auto [again, other] = pass();
    CHECK(at::equal(again, line));
    CHECK(at::equal(other, product));
  };
  {
    const WeightsAtRest rest;
    check();
    matrix.mul_(2);  // copied already
    filters.mul_(2);
    check();
    CHECK(test::host_counts_of([&] {
            for (int i = 0; i < 3; ++i) pass();
          }).left_bytes == 0);
  }
  const auto [doubled, doubled_product] = pass();
  CHECK(at::equal(doubled, line * 2));
  CHECK(at::equal(doubled_product, product * 2));
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST_CASE("autograd keeps the frozen weight itself for the backward pass") {
  const at::Tensor weight = at::ones({64, 64}, at::kBFloat16);
  const at::Tensor bias = at::zeros({64}).set_requires_grad(true);
  const auto holders = weight.storage().use_count();
  {
    const at::Tensor out = weighted_linear(at::ones({2, 64}).set_requires_grad(true), weight, bias);
    CHECK(weight.storage().use_count() > holders);
    out.sum().backward();
  }
  CHECK(weight.storage().use_count() == holders);
  CHECK(at::equal(bias.grad(), at::full({64}, 2.0)));
}

/// Output of a unet with adapters, all their gradients in one, and the bytes of what is frozen.
struct Pass {
  at::Tensor out, gradients;
  double frozen_bytes = 0;
};

/// @param held type of the frozen weights; their numbers are those of bfloat16 in any case
Pass run_with(const UnetConfig& config, at::ScalarType held) {
  const auto unet = std::make_shared<UnetImpl>(config);
  test::fill_parameters(*unet);
  attach_lora(*unet, {"to_q", "to_kv", "to_out.0"}, {});
  freeze_base(*unet, /*train_bias=*/false);
  hold_frozen_weights_as(*unet, at::kBFloat16);
  hold_frozen_weights_as(*unet, held);
  {
    const torch::NoGradGuard no_grad;
    for (auto& [name, tensor] : lora_state_dict(*unet))
      tensor.copy_(test::wave(tensor.sizes(), 0.7, 1.0, 0.1));
  }
  UnetConditions conditions;
  if (config.cond_on_image_embeds) conditions.image_embed = test::wave({2, 12}, 0.3);
  if (config.lowres_cond) conditions.lowres_cond_img = test::wave({2, 3, 16, 16}, 0.11);
  Pass pass;
  pass.out =
      unet->forward(test::wave({2, 3, 16, 16}, 0.05), at::tensor({5, 700}, at::kLong), conditions);
  pass.out.square().mean().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : unet->parameters()) {
    if (parameter.requires_grad()) {
      CHECK(parameter.scalar_type() == at::kFloat);
      gradients.push_back(parameter.grad().flatten());
    } else {
      pass.frozen_bytes += static_cast<double>(parameter.nbytes());
    }
  }
  pass.gradients = at::cat(gradients);
  return pass;
}

TEST_CASE("a unet with frozen weights in bfloat16 takes half the memory and computes the same") {
  for (UnetConfig config : {test::config_d1(), test::config_d2u1(), test::config_d2u2()}) {
    config.dim = 16;
    config.resnet_groups = int64_t{8};
    const Pass low = run_with(config, at::kBFloat16), full = run_with(config, at::kFloat);
    CHECK(low.frozen_bytes < 0.52 * full.frozen_bytes);
    CHECK(low.out.scalar_type() == at::kFloat);
    // The same numbers; biases are added behind the products, not within, and norms of few values
    // amplify the rounding, in the gradients twice.
    test::expect_close(low.out, full.out, 2e-4, "output");
    test::expect_close(low.gradients, full.gradients, 2e-3, "gradients");
  }
}

}  // namespace
}  // namespace dalle2
