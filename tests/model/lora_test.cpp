// SPDX-License-Identifier: MIT
#include "model/lora.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "model/attention.h"
#include "model/unet/unet.h"
#include "support/fixture.h"
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

TEST_CASE("of a network with adapters only they need gradients, and its biases if asked for") {
  const auto unet = make_unet(test::config_d1());
  attach_lora(*unet, kTargets, {});
  freeze_base(*unet, /*train_bias=*/false);
  set_up_halves(*unet, 0.1);
  run(*unet).square().mean().backward();
  for (const auto& item : unet->named_parameters()) {
    INFO(item.key());
    const bool is_adapter = item.key().find(".lora.") != std::string::npos;
    CHECK(item.value().requires_grad() == is_adapter);
    CHECK(item.value().grad().defined() == is_adapter);
  }
  freeze_base(*unet, /*train_bias=*/true);
  CHECK(unet->named_parameters()["to_out.bias"].requires_grad());
  CHECK_FALSE(unet->named_parameters()["to_out.weight"].requires_grad());
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

}  // namespace
}  // namespace dalle2
