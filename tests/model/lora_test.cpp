// SPDX-License-Identifier: MIT
#include "model/lora.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "model/attention.h"
#include "model/frozen_weight.h"
#include "model/layers.h"
#include "support/fixture.h"
#include "support/host_counts.h"
#include "support/message_of.h"
#include "unet_support.h"

namespace dalle2 {
namespace {

const std::vector<std::string> kTargets = {"to_q", "to_kv", "to_out.0"};

std::shared_ptr<UnetImpl> make_unet(const UnetConfig& config) {
  auto unet = std::make_shared<UnetImpl>(config);
  test::fill_parameters(*unet);
  return unet;
}

at::Tensor run(UnetImpl& unet) {
  UnetConditions conditions;
  const UnetConfig& config = unet.config();
  if (config.cond_on_image_embeds) conditions.image_embed = test::wave({2, 12}, 0.3);
  if (config.cond_on_text_encodings.value_or(false))
    conditions.text_encodings = test::wave({2, 4, 6}, 0.2);
  if (config.lowres_cond) conditions.lowres_cond_img = test::wave({2, 3, 16, 16}, 0.11);
  if (config.lowres_noise_cond) conditions.lowres_noise_level = at::tensor({3, 40}, at::kLong);
  return unet.forward(
      test::wave({2, 3, 16, 16}, 0.05), at::tensor({5, 700}, at::kLong), conditions);
}

void set_up_halves(const torch::nn::Module& network, double scale) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : lora_state_dict(network)) {
    if (name.ends_with(".up.weight")) tensor.copy_(test::wave(tensor.sizes(), 0.7, 1.0, scale));
  }
}

TEST_CASE("adapters that have learned nothing leave every bit of the output as it is") {
  for (const UnetConfig& config : {test::config_d1(), test::config_d2u1(), test::config_d2u2()}) {
    const auto unet = make_unet(config);
    const at::Tensor before = run(*unet);
    attach_lora(*unet, {"to_q", "to_kv", "to_out.0", "to_time_hiddens.1"}, {});
    CHECK(count_lora_adapters(*unet) > 10);
    CHECK(at::equal(run(*unet), before));
    set_up_halves(*unet, 0.1);
    CHECK_FALSE(at::equal(run(*unet), before));
  }
}

TEST_CASE("adapters are named by their layers, and a network without any has no such names") {
  const auto unet = make_unet(test::config_d1());
  CHECK(lora_state_dict(*unet).empty());
  attach_lora(*unet, {"to_q"}, {.rank = 3});
  const StateDict adapters = lora_state_dict(*unet);
  REQUIRE(adapters.size() == 2 * count_lora_adapters(*unet));
  const at::Tensor* down = find_tensor(adapters, "mid_attn.fn.fn.to_q.lora.down.weight");
  const at::Tensor* up = find_tensor(adapters, "mid_attn.fn.fn.to_q.lora.up.weight");
  REQUIRE(down != nullptr);
  REQUIRE(up != nullptr);
  CHECK(down->sizes() == at::IntArrayRef({3, 16}));
  CHECK(up->sizes() == at::IntArrayRef({8, 3}));
  CHECK(unet->named_parameters().contains("mid_attn.fn.fn.to_q.lora.down.weight"));
}

TEST_CASE("down begins as PEFT begins it, up with zeros") {
  const auto begins = test::load_fixture("lora/begins").json;
  for (const auto& [init, name] :
       {std::pair{LoraInit::gaussian, "gaussian"}, std::pair{LoraInit::kaiming, "kaiming"}}) {
    torch::manual_seed(1);
    const LoraOptions options = {.rank = 16, .alpha = 4, .init = init};
    const LoraAdapterImpl adapter(at::zeros({64, 4096}), options, nullptr, 0);
    const auto& expected = begins.at(name);
    INFO(name);
    // 65,536 draws: the standard deviation is known to 0.3 %.
    CHECK(adapter.down.std().item<double>() ==
          Approx(expected.at("std").get<double>()).epsilon(0.02));
    CHECK(adapter.down.abs().max().item<double>() ==
          Approx(expected.at("largest").get<double>()).epsilon(0.25));
    CHECK(adapter.up.abs().max().item<double>() == 0.0);
    CHECK(adapter.scale() == expected.at("scale").get<double>());
    CHECK(adapter.down.requires_grad());
    CHECK(adapter.up.requires_grad());
  }
  CHECK(begins.at("gaussian").at("std").get<double>() == Approx(1.0 / 16).epsilon(0.02));
}

TEST_CASE("a target that no layer's name ends in is refused with the ends there are") {
  const auto unet = make_unet(test::config_d1());
  CHECK(
      test::message_of([&] {
        check_lora_targets({unet.get()}, {"to_q", "to_qk", "q"});
      }) ==
      "/train/lora/targets: no layer's name ends in \"q\", \"to_qk\"; the layers that can take an "
      "adapter end in \"image_to_tokens.0\", \"time_mlp.1\", \"to_image_hiddens.0\", \"to_kv\", "
      "\"to_out.0\", \"to_q\", \"to_time_cond.0\", \"to_time_hiddens.1\", \"to_time_tokens.0\"");
  CHECK_NOTHROW(check_lora_targets({unet.get()}, kTargets));
}

TEST_CASE("a target has to be in one of the networks, and each network needs an adapter") {
  const auto plain = make_unet(test::config_d1());
  const auto sparse = make_unet(test::config_d2u2());
  CHECK_NOTHROW(check_lora_targets({plain.get(), sparse.get()}, {"to_q", "to_qkv"}));
  CHECK_THROWS_WITH(
      check_lora_targets({sparse.get(), plain.get()}, {"to_qkv"}),
      Catch::Contains(
          "network 2 of 2 that are trained has none of these layers; add one that it has"));
  attach_lora(*sparse, {"to_qkv"}, {});
  CHECK(count_lora_adapters(*sparse) > 0);
  CHECK(lora_state_dict(*sparse)[0].second.dim() == 4);
}

TEST_CASE("dropout of an adapter's input keeps its expectation and depends on its address alone") {
  auto dropout = std::make_shared<DropoutSeed>();
  const LoraOptions options = {.rank = 2, .alpha = 2, .dropout = 0.25};
  LoraAdapterImpl adapter(at::zeros({8, 8}), options, dropout, 3);
  {
    const torch::NoGradGuard no_grad;
    adapter.up.copy_(test::wave(adapter.up.sizes()));
  }
  const at::Tensor x = at::ones({64, 50, 8});
  adapter.eval();
  CHECK_FALSE(adapter.drops());
  const at::Tensor whole = adapter.forward(x);
  adapter.train();
  REQUIRE(adapter.drops());
  *dropout = {7, 0};
  const at::Tensor dropped = adapter.forward(x);
  // 3,200 tokens: a mean is known to about 1 %.
  test::expect_close(
      dropped.flatten(0, 1).mean(0), whole.flatten(0, 1).mean(0), 0.05, "mean over masks");
  CHECK_FALSE(at::allclose(dropped, whole));
  torch::manual_seed(5);
  CHECK(at::equal(adapter.forward(x), dropped));
  // In two chunks, the second from sample 40 on.
  CHECK(at::equal(adapter.forward(x.narrow(0, 0, 40)), dropped.narrow(0, 0, 40)));
  *dropout = {7, 40};
  CHECK(at::equal(adapter.forward(x.narrow(0, 40, 24)), dropped.narrow(0, 40, 24)));
  *dropout = {8, 0};
  CHECK_FALSE(at::equal(adapter.forward(x), dropped));
}

TEST_CASE("two adapters of a unet drop different inputs, and a recomputed pass drops the same") {
  UnetConfig config = test::config_d1();
  config.checkpoint_during_training = true;
  const auto gradients = [&](bool recompute) {
    config.checkpoint_during_training = recompute;
    const auto unet = make_unet(config);
    torch::manual_seed(2);
    const auto dropout = attach_lora(*unet, kTargets, {.dropout = 0.5});
    freeze_base(*unet, false);
    set_up_halves(*unet, 0.1);
    *dropout = {11, 0};
    run(*unet).square().mean().backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : unet->parameters()) {
      if (parameter.requires_grad()) found.push_back(parameter.grad().flatten());
    }
    return at::cat(found);
  };
  test::expect_close(gradients(true), gradients(false), 1e-5, "gradients");
}

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
  const auto unet = make_unet(config);
  attach_lora(*unet, kTargets, {});
  freeze_base(*unet, /*train_bias=*/false);
  hold_frozen_weights_as(*unet, at::kBFloat16);
  hold_frozen_weights_as(*unet, held);
  {
    const torch::NoGradGuard no_grad;  // both halves: those that a new adapter draws differ
    for (auto& [name, tensor] : lora_state_dict(*unet))
      tensor.copy_(test::wave(tensor.sizes(), 0.7, 1.0, 0.1));
  }
  Pass pass;
  pass.out = run(*unet);
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
    // The same numbers; biases are added behind the products, not within. Norms of few values amplify the
    // rounding: the gradients of either lie up to 1.4e-3 from those of float64.
    test::expect_close(low.out, full.out, 2e-4, "output");
    test::expect_close(low.gradients, full.gradients, 4e-3, "gradients");
  }
}

}  // namespace
}  // namespace dalle2
