// SPDX-License-Identifier: MIT
#include "model/prior/prior_network.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "model/lora.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

PriorNetworkConfig prior_config() {
  PriorNetworkConfig config;
  config.dim = 16;
  config.depth = 2;
  config.dim_head = 8;
  config.heads = 2;
  config.max_text_len = 5;
  return config;
}

PriorNetwork prior_network(const PriorNetworkConfig& config = prior_config()) {
  PriorNetwork network(config);
  fill_parameters(*network);
  network->eval();
  return network;
}

PriorConditions small_conditions() {
  PriorConditions given;
  given.text_embed = wave({2, 16}, 0.77, 0.2);
  given.text_encodings = wave({2, 3, 16}, 0.5, 0.1);
  return given;
}

const at::Tensor kTimes = torch::tensor({3, 17});

TEST_CASE("buckets of relative positions are single distances first, then wider and wider") {
  const at::Tensor row = relative_position_buckets(200, 1, at::kCPU).flatten();  // by distance back
  const std::vector<int64_t> starts = {
      16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t distance = 0; distance < 200; ++distance) {
    int64_t expected = distance;
    if (distance >= 16) {
      expected = 15 + std::count_if(
                          starts.begin(), starts.end(), [&](int64_t s) { return distance >= s; });
    }
    INFO("distance " << distance);
    CHECK(row[distance].item<int64_t>() == expected);
  }
  CHECK(relative_position_buckets(1, 5, at::kCPU).sum().item<int64_t>() == 0);
}

TEST_CASE("no token of the prior sees one behind it") {
  const torch::NoGradGuard no_grad;
  PriorNetworkConfig config = prior_config();
  CausalTransformerImpl transformer(config);
  const at::Tensor tokens = wave({1, 6, 16}, 0.3);
  const at::Tensor out = transformer.forward(tokens, {}, 6);
  at::Tensor changed = tokens.clone();
  changed[0][4] += wave({16}, 1.3);  // a constant would vanish in the norm
  const at::Tensor other = transformer.forward(changed, {}, 6);
  CHECK(at::equal(other.narrow(1, 0, 4), out.narrow(1, 0, 4)));
  CHECK_FALSE(at::allclose(other[0][4], out[0][4]));
  CHECK_FALSE(at::allclose(other[0][5], out[0][5]));
}

TEST_CASE("the last tokens of a prior have the same outputs alone, and after a cached prefix") {
  PriorNetworkConfig config = prior_config();
  config.depth = 3;
  config.rotary_emb = GENERATE(true, false);
  CausalTransformerImpl transformer(config);
  const at::Tensor tokens = wave({2, 7, 16}, 0.3);
  const at::Tensor whole = transformer.forward(tokens, {}, 7);
  for (const int64_t outputs : {1, 3}) {
    const at::Tensor expected = whole.narrow(1, 7 - outputs, outputs);
    expect_close(transformer.forward(tokens, {}, outputs), expected, 1e-5, "alone");
    for (const int64_t before : {1, 4}) {
      const PrefixCache prefix = transformer.encode_prefix(tokens.narrow(1, 0, before));
      const at::Tensor rest = tokens.narrow(1, before, 7 - before);
      expect_close(
          transformer.forward(rest, {}, outputs, &prefix), expected, 1e-5, "after a prefix");
    }
  }
}

TEST_CASE("a prefix that all samples share gets the gradients of a whole pass") {
  CausalTransformerImpl transformer(prior_config());
  const auto gradients = [&](bool has_prefix) {
    const at::Tensor shared = wave({1, 4, 16}, 0.4).requires_grad_();
    const at::Tensor own = wave({3, 3, 16}, 0.9).requires_grad_();
    at::Tensor out;
    if (has_prefix) {
      const PrefixCache prefix = transformer.encode_prefix(shared);
      out = transformer.forward(own, {}, 1, &prefix);
    } else {
      out = transformer.forward(at::cat({shared.expand({3, -1, -1}), own}, 1), {}, 1);
    }
    transformer.zero_grad();
    (out * wave({3, 1, 16}, 0.7)).sum().backward();
    std::vector<at::Tensor> found = {shared.grad(), own.grad()};
    for (const at::Tensor& each : transformer.parameters()) {
      if (each.grad().defined()) found.push_back(each.grad().clone());
    }
    return found;
  };
  const std::vector<at::Tensor> whole = gradients(false), split = gradients(true);
  REQUIRE(split.size() == whole.size());
  for (size_t i = 0; i < whole.size(); ++i) expect_close(split[i], whole[i], 1e-4, "gradient");
}

TEST_CASE("a prior with encoded texts has the outputs of one without") {
  const torch::NoGradGuard no_grad;
  PriorNetwork network = prior_network();
  network->eval();
  const at::Tensor x = wave({2, 16}, 0.31);
  for (const bool encoded : {true, false}) {
    PriorConditions given = small_conditions();
    if (!encoded) given.text_encodings = at::Tensor();
    const at::Tensor expected = network->forward_with_cond_scale(x, kTimes, given, 2.5);
    given.encoded_text = network->encode_text(given, /*guided=*/true);
    expect_close(network->forward_with_cond_scale(x, kTimes, given, 2.5), expected, 1e-5, "answer");
  }
}

TEST_CASE("a padded, a dropped and an absent text take the null encodings of their positions") {
  const torch::NoGradGuard no_grad;
  PriorNetwork network = prior_network();
  const at::Tensor x = wave({2, 16}, 0.31);
  PriorConditions given = small_conditions();
  given.text_encodings = at::zeros({2, 3, 16});
  const at::Tensor padded = network->forward(x, kTimes, given);
  given.text_encodings = at::Tensor();
  CHECK(at::allclose(network->forward(x, kTimes, given), padded, 1e-5, 1e-6));

  given = small_conditions();
  const at::Tensor whole = network->forward(x, kTimes, given);
  given.text_keep_mask = torch::tensor({true, false});
  const at::Tensor half = network->forward(x, kTimes, given);
  CHECK(at::allclose(half[0], whole[0], 1e-5, 1e-6));
  CHECK_FALSE(at::allclose(half[1], whole[1]));
  // The second sample's text has no say any more.
  given.text_embed = given.text_embed.clone();
  given.text_embed[1] += 1.0;
  given.text_encodings = given.text_encodings.clone();
  given.text_encodings[1] += 1.0;
  CHECK(at::equal(network->forward(x, kTimes, given)[1], half[1]));
  // A longer text is cut.
  given = small_conditions();
  given.text_encodings = wave({2, 9, 16}, 0.5);
  const at::Tensor cut = network->forward(x, kTimes, given);
  given.text_encodings = given.text_encodings.narrow(1, 0, 5);
  CHECK(at::equal(network->forward(x, kTimes, given), cut));
}

TEST_CASE("a null max_text_len is 256") {
  PriorNetworkConfig config = prior_config();
  config.max_text_len.reset();
  PriorNetwork network(config);
  CHECK(network->named_parameters()["null_text_encodings"].size(1) == 256);
}

TEST_CASE("guidance with a scale of one asks the network once, and nulls the image as well") {
  const torch::NoGradGuard no_grad;
  PriorNetwork network = prior_network();
  const at::Tensor x = wave({2, 16}, 0.31);
  const PriorConditions given = small_conditions();
  const at::Tensor out = network->forward(x, kTimes, given);
  CHECK(at::equal(network->forward_with_cond_scale(x, kTimes, given, 1.0), out));
  PriorConditions null = given;
  null.text_keep_mask = null.image_keep_mask = at::zeros({2}, at::kBool);
  const at::Tensor dropped = network->forward(x, kTimes, null);
  CHECK(at::equal(dropped, network->forward(x + 1.0, kTimes, null)));
  expect_close(network->forward_with_cond_scale(x, kTimes, given, 3.0),
               dropped + (out - dropped) * 3.0,
               1e-6,
               "guidance");
}

TEST_CASE("adapters attach to the prior's attention and change nothing at first") {
  const torch::NoGradGuard no_grad;
  PriorNetwork network = prior_network();
  const at::Tensor x = wave({2, 16}, 0.31);
  const at::Tensor out = network->forward(x, kTimes, small_conditions());
  attach_lora(*network, {"to_q", "to_kv", "to_out.0"}, {.rank = 2, .alpha = 2});
  CHECK(count_lora_adapters(*network) == 6);
  CHECK(at::equal(network->forward(x, kTimes, small_conditions()), out));
  CHECK(lora_state_dict(*network).front().first ==
        "causal_transformer.layers.0.0.to_q.lora.down.weight");
}

TEST_CASE("half precision moves the prior's answer by roundings only") {
  const torch::NoGradGuard no_grad;
  PriorNetwork network = prior_network();
  const at::Tensor x = wave({2, 16}, 0.31);
  const at::Tensor out = network->forward(x, kTimes, small_conditions());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor half = network->forward(x, kTimes, small_conditions());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  // The reference's own answer moves by a tenth: bfloat16 keeps 8 bits, and the last norm divides
  // by the largest entry.
  expect_close(half.to(at::kFloat), out, 0.15, "under autocast");
}

}  // namespace
}  // namespace dalle2::test
