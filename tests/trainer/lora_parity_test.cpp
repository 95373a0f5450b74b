// SPDX-License-Identifier: MIT
// Adapters against PEFT: outputs, gradients, and steps of AdamW over flat buffers.
#include <torch/torch.h>
#include <algorithm>
#include <catch2/catch.hpp>

#include "model/attention.h"
#include "model/lora.h"
#include "model/unet/unet.h"
#include "optim/flat_parameters.h"
#include "optim/optimizer.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

// Sums of float32 in another order (folded projections, fused norms).
constexpr double kTolerance = 1e-5;
// Adam divides a gradient by its own size, so that small ones bring their rounding to the weights.
constexpr double kStepTolerance = 2e-4;
// The fixture says how far the reference's own weights end when it begins with all of them off by
// one rounding. Some hundred operations round once each, so it may be 20 times that.
constexpr double kNoiseSteps = 20;

/// A network of the fixture with the weights of its names there, and a way to run it.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> run;
  std::string prefix_here = {}, prefix_there = {};

  std::string name_there(const std::string& name) const {
    return prefix_there + name.substr(prefix_here.size());
  }
};

UnetConfig unet_config(const nlohmann::json& json) {
  UnetConfig config;
  config.dim = json.at("dim");
  config.dim_mults = json.at("dim_mults").get<std::vector<int64_t>>();
  config.image_embed_dim = json.at("image_embed_dim").get<int64_t>();
  config.cond_dim = json.at("cond_dim").get<int64_t>();
  config.num_resnet_blocks = json.at("num_resnet_blocks").get<int64_t>();
  config.resnet_groups = json.at("resnet_groups").get<int64_t>();
  config.num_image_tokens = json.at("num_image_tokens");
  config.num_time_tokens = json.at("num_time_tokens");
  config.attn_heads = json.at("attn_heads");
  config.attn_dim_head = json.at("attn_dim_head");
  config.self_attn = json.at("self_attn").get<std::vector<bool>>();
  config.sparse_attn = json.at("sparse_attn");
  config.cond_on_image_embeds = true;
  return config;
}

Network make_network(const test::Fixture& fixture) {
  const std::string kind = fixture.json.at("kind");
  const at::Tensor x = fixture.tensor("in.x");
  if (kind == "unet") {
    auto unet = std::make_shared<UnetImpl>(unet_config(fixture.json.at("unet")));
    UnetConditions conditions;
    conditions.image_embed = fixture.tensor("in.embed");
    const at::Tensor time = fixture.tensor("in.time");
    return {unet, [=] { return unet->forward(x, time, conditions); }};
  }
  if (kind == "cross") {
    auto cross = std::make_shared<CrossAttentionImpl>(12, 6, /*cosine_sim=*/false);
    const at::Tensor context = fixture.tensor("in.context");
    return {cross, [=] { return cross->forward(x, context); }};
  }
  const auto& shape = fixture.json.at("shape");
  const int64_t dim = shape.at("dim"), heads = shape.at("heads"), dim_head = shape.at("dim_head");
  if (kind == "attention") {
    auto attention = std::make_shared<AttentionImpl>(dim, heads, dim_head, /*cosine_sim=*/false);
    return {attention, [=] { return attention->forward(x); }};
  }
  auto linear = std::make_shared<LinearAttentionImpl>(dim, heads, dim_head);
  return {linear, [=] { return linear->forward(x); }, "fn.", "0."};
}

/// The network with the fixture's adapters.
Network load_network(const test::Fixture& fixture) {
  Network network = make_network(fixture);
  const torch::NoGradGuard no_grad;
  for (const auto& item : network.module->named_parameters())
    item.value().copy_(test::golden_weight(network.name_there(item.key()), item.value().sizes()));
  const auto& lora = fixture.json.at("lora");
  attach_lora(*network.module,
              lora.at("targets").get<std::vector<std::string>>(),
              {.rank = lora.at("rank"), .alpha = lora.at("alpha")});
  freeze_base(*network.module, lora.value("train_bias", false));
  network.module->train();
  for (const auto& item : network.module->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    item.value().copy_(fixture.tensor("start." + network.name_there(item.key())));
  }
  return network;
}

at::Tensor loss_of(const at::Tensor& out) {
  const at::Tensor target = at::arange(out.numel(), at::kFloat).sin().view(out.sizes());
  return (out - target).square().mean();
}

/// Relative to a gradient's own size, and what the rounding of the largest ones leaves in all.
double allowed(const at::Tensor& gradient, double largest) {
  const double own = gradient.abs().max().item<double>();
  return own > 0 ? 1e-4 + 1e-6 * largest / own : 1e-6 * largest;
}

void check_gradients(const test::Fixture& fixture, const Network& network) {
  double largest = 0;
  for (const auto& [name, gradient] : fixture.below("grad."))
    largest = std::max(largest, gradient.abs().max().item<double>());
  size_t compared = 0;
  for (const auto& item : network.module->named_parameters()) {
    const std::string key = "grad." + network.name_there(item.key());
    INFO(key);
    REQUIRE(item.value().grad().defined() == fixture.has(key));
    if (!fixture.has(key)) continue;
    const double tolerance = allowed(fixture.tensor(key), largest);
    test::expect_close(item.value().grad(), fixture.tensor(key), tolerance, key);
    if (tolerance < 1e-2) ++compared;
  }
  // Of the unet most are small beside those of its last layers.
  CHECK(compared > std::min<size_t>(fixture.below("grad.").size() / 2, 30));
}

TEST_CASE("adapters give PEFT's outputs, gradients and five steps of AdamW") {
  for (const char* name :
       {"attention", "cross_folded", "cross_plain", "linear_attention", "unet"}) {
    const test::Fixture fixture = test::load_fixture(std::string("lora/") + name);
    const Network network = load_network(fixture);
    INFO(name);
    for (const auto& frozen : fixture.json.at("frozen")) {
      const std::string ours =
          network.prefix_here + frozen.get<std::string>().substr(network.prefix_there.size());
      REQUIRE(network.module->named_parameters().contains(ours));
      CHECK_FALSE(network.module->named_parameters()[ours].requires_grad());
    }
    FlatParameters parameters(*network.module, trained_parameters(*network.module));
    CHECK(parameters.parameters().size() == fixture.below("start.").size());
    FlatGradients gradients(parameters);
    OptimizerOptions options;
    options.weight_decay = fixture.json.at("adamw").at("weight_decay");
    options.group_wd_params = false;
    Optimizer optimizer(parameters, options);
    const auto losses = fixture.json.at("losses").get<std::vector<double>>();
    for (size_t step = 0; step < losses.size(); ++step) {
      const at::Tensor out = network.run();
      if (step == 0) test::expect_close(out, fixture.tensor("out"), kTolerance, "output");
      const at::Tensor loss = loss_of(out);
      CHECK(loss.item<double>() == Approx(losses[step]).epsilon(step == 0 ? 1e-5 : 1e-3));
      loss.backward();
      if (step == 0) check_gradients(fixture, network);
      optimizer.step(gradients, fixture.json.at("adamw").at("lr"), at::ones({}), at::zeros({}));
      optimizer.count_update();
      gradients.zero_grad();
    }
    for (const FlatEntry& entry : parameters.parameters()) {
      if (entry.name.find(".lora.") == std::string::npos) continue;
      const std::string there = network.name_there(entry.name);
      const at::Tensor& end = fixture.tensor("end." + there);
      const double noise = fixture.json.at("end_noise").at(there);
      const double rounding = kNoiseSteps * noise / end.abs().max().item<double>();
      CHECK(rounding < 1e-2);  // or the comparison says nothing
      test::expect_close(entry.tensor, end, kStepTolerance + rounding, entry.name);
    }
  }
}

}  // namespace
}  // namespace dalle2
