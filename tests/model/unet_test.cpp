// SPDX-License-Identifier: MIT
// The Unet's parameters, its conditions and what it refuses.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <fmt/ranges.h>

#include "model/unet_support.h"
#include "support/fixture.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

// "name (shape)" of each parameter, as in the dumps of the reference.
std::vector<std::string> parameter_lines(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& item : module.named_parameters()) {
    const std::string shape = fmt::format("{}", fmt::join(item.value().sizes(), ", "));
    lines.push_back(
        fmt::format("{} ({}{})", item.key(), shape, item.value().dim() == 1 ? "," : ""));
  }
  return lines;
}

std::vector<std::string> dumped_lines(const std::string& name) {
  std::ifstream file(std::string(DALLE2_SOURCE_DIR) + "/tests/model/state_dicts.txt");
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      inside = line.starts_with("## " + name + " ");
    } else if (inside) {
      lines.push_back(line);
    }
  }
  return lines;
}

UnetConditions image_only(int64_t batch) {
  UnetConditions given;
  given.image_embed = wave({batch, 12}, 0.9, 0.3);
  return given;
}

at::Tensor times(int64_t batch) {
  return at::arange(batch, at::kLong) * 7 + 3;
}

TEST_CASE("parameters have the reference's names and shapes in its order") {
  const std::vector<std::pair<std::string, UnetConfig>> unets = {
      {"D1", config_d1()}, {"D2u1", config_d2u1()}, {"D2u2", config_d2u2()}, {"U3", config_u3()}};
  for (const auto& [name, config] : unets) {
    INFO(name);
    const std::vector<std::string> expected = dumped_lines(name);
    REQUIRE(expected.size() > 200);
    const std::vector<std::string> found = parameter_lines(*Unet(config));
    for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i)
      REQUIRE(found[i] == expected[i]);
    CHECK(found.size() == expected.size());
    CHECK(Unet(config)->buffers().empty());
  }
}

TEST_CASE("a fresh unet draws exactly nothing") {
  UnetConfig config = config_d1();
  config.final_conv_kernel_size = 3;
  Unet unet(config);
  CHECK(unet->named_parameters()["to_out.weight"].sizes() == at::IntArrayRef({6, 8, 3, 3}));
  const at::Tensor out = unet->forward(wave({2, 3, 16, 16}), times(2), image_only(2));
  CHECK(out.sizes() == at::IntArrayRef({2, 6, 16, 16}));
  CHECK(out.abs().max().item<double>() == 0.0);
}

TEST_CASE("fresh weights are drawn as the reference draws them") {
  UnetConfig config = config_d1();
  config.dim = 32;
  config.cond_dim = 64;
  Unet unet(config);
  const auto parameters = unet->named_parameters();
  const at::Tensor shuffle = parameters["ups.0.3.net.0.weight"];
  const at::Tensor squares = shuffle.view({-1, 4, shuffle.size(1)});
  CHECK(at::equal(squares.select(1, 0), squares.select(1, 3)));
  CHECK_FALSE(at::equal(squares[0][0], squares[1][0]));
  // kaiming_uniform: bound sqrt(6 / fan_in)
  const double bound = std::sqrt(6.0 / static_cast<double>(shuffle.size(1)));
  CHECK(shuffle.abs().max().item<double>() <= bound);
  CHECK(shuffle.abs().max().item<double>() > 0.9 * bound);
  CHECK(parameters["ups.0.3.net.0.bias"].abs().max().item<double>() == 0.0);
  CHECK(parameters["null_text_embed"].std().item<double>() == Approx(1.0).margin(0.05));
  CHECK(parameters["null_image_hiddens"].abs().max().item<double>() > 1.0);
}

TEST_CASE("an embedding as wide as a token serves any batch, each sample by itself") {
  const torch::NoGradGuard no_grad;
  UnetConfig config = config_d1();
  config.cond_dim = 12;
  Unet unet(config);
  fill_parameters(*unet);
  for (const std::string& name : unet->named_parameters().keys())
    CHECK_FALSE(name.starts_with("image_to_tokens."));
  // A batch as large as the number of tokens is where the reference mixes samples.
  for (const int64_t batch : {1, 3, 4}) {
    const at::Tensor x = wave({batch, 3, 16, 16});
    const UnetConditions all = image_only(batch);
    const at::Tensor out = unet->forward(x, times(batch), all);
    for (int64_t i = 0; i < batch; ++i) {
      UnetConditions one;
      one.image_embed = all.image_embed.narrow(0, i, 1);
      const at::Tensor alone = unet->forward(x.narrow(0, i, 1), times(batch).narrow(0, i, 1), one);
      expect_close(out.narrow(0, i, 1), alone, 1e-5, "sample by itself");
    }
  }
}

TEST_CASE("text beyond max_text_len is cut and zero rows count as no text") {
  const torch::NoGradGuard no_grad;
  Unet unet(config_d2u1());
  fill_parameters(*unet);
  const at::Tensor x = wave({1, 3, 16, 16});
  UnetConditions given = image_only(1);
  given.text_encodings = wave({1, 9, 6}, 0.5, 0.1);
  const at::Tensor out = unet->forward(x, times(1), given);
  given.text_encodings = given.text_encodings.narrow(1, 0, 5).contiguous();
  CHECK(at::equal(unet->forward(x, times(1), given), out));
  given.text_encodings = at::cat({wave({1, 3, 6}), at::zeros({1, 2, 6})}, 1);
  const at::Tensor padded = unet->forward(x, times(1), given);
  given.text_encodings = wave({1, 3, 6});
  CHECK(at::equal(unet->forward(x, times(1), given), padded));
  given.text_encodings = at::zeros({1, 2, 6});
  const at::Tensor empty = unet->forward(x, times(1), given);
  given.text_encodings = wave({1, 3, 6});
  given.text_keep_mask = prob_mask(1, 0.0, x.device(), std::nullopt);
  CHECK(at::equal(unet->forward(x, times(1), given), empty));
}

TEST_CASE("drop masks hold their probability and need no generator at 0 and 1") {
  const at::Device cpu(at::kCPU);
  CHECK(prob_mask(5, 1.0, cpu, std::nullopt).all().item<bool>());
  CHECK_FALSE(prob_mask(5, 0.0, cpu, std::nullopt).any().item<bool>());
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor drawn = prob_mask(10000, 0.9, cpu, generator);
  // Three standard deviations of a binomial: 3 sqrt(10000 * 0.9 * 0.1).
  CHECK(std::abs(drawn.sum().item<double>() - 9000.0) <= 90.0);
  CHECK(at::equal(prob_mask(10000, 0.9, cpu, at::detail::createCPUGenerator(3)), drawn));
  CHECK_FALSE(at::equal(prob_mask(10000, 0.9, cpu, generator), drawn));
}

TEST_CASE("what a unet cannot use is refused with both numbers") {
  Unet text(config_d2u1());
  UnetConditions given = image_only(2);
  const auto run = [&](Unet& unet) {
    return message_of([&] { unet->forward(wave({2, 3, 16, 16}), times(2), given); });
  };
  given.text_encodings = wave({2, 3, 7});
  CHECK_THAT(run(text), Contains("[2, 3, 7]") && Contains("text_embed_dim is 6"));
  given.text_encodings = wave({3, 3, 6});
  CHECK_THAT(run(text), Contains("[3, 3, 6]") && Contains("batch of 2"));
  given = image_only(2);
  given.image_embed = wave({2, 13});
  CHECK_THAT(run(text), Contains("[2, 13]") && Contains("image_embed_dim is 12"));
  given.image_embed = wave({1, 12});
  CHECK_THAT(run(text), Contains("[1, 12]") && Contains("batch of 2"));
  given.image_embed = at::Tensor();
  CHECK_THAT(run(text), Contains("conditioned on image embeddings"));
}

TEST_CASE("a unet runs in float64 and, under autocast, in bfloat16") {
  Unet unet(config_d1());
  fill_parameters(*unet);
  const at::Tensor x = wave({2, 3, 16, 16});
  UnetConditions given = image_only(2);
  const at::Tensor single = unet->forward(x, times(2), given);

  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor half = unet->forward(x, times(2), given);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(half.scalar_type() == at::kBFloat16);
  // bfloat16 has 8 bits: some 30 layers lose a few per cent.
  expect_close(half.to(at::kFloat), single, 0.05, "bfloat16");
  half.to(at::kFloat).square().mean().backward();
  for (const auto& item : unet->named_parameters()) {
    if (!item.value().grad().defined()) continue;
    INFO(item.key());
    CHECK(item.value().grad().isfinite().all().item<bool>());
  }

  unet->to(at::kDouble);
  given.image_embed = given.image_embed.to(at::kDouble);
  const at::Tensor twice = unet->forward(x.to(at::kDouble), times(2), given);
  CHECK(twice.scalar_type() == at::kDouble);
  // Not nearer: the norms' eps is 1e-3 for anything but float32.
  expect_close(twice, single, 0.05, "float64");
}

}  // namespace
}  // namespace dalle2::test
