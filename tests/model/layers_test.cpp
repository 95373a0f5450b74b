// SPDX-License-Identifier: MIT
#include "model/layers.h"

#include <torch/torch.h>
#include <numbers>
#include <set>

#include "kernels/cpu_algorithms.h"
#include "model/attention.h"
#include "model/clip/clip_encoder.h"
#include "model/random.h"
#include "model/resize.h"
#include "support/fixture.h"
#include "support/host_counts.h"

namespace dalle2::test {
namespace {

// The variance is so small that eps decides the result: x / sqrt(var + eps).
at::Tensor norm_of_small(at::ScalarType dtype) {
  GainNormImpl norm({2});
  norm.to(dtype);
  return norm.forward(torch::tensor({-0.01, 0.01}).to(dtype)).to(at::kDouble);
}

TEST_CASE("norms use eps 1e-5 for float32 and 1e-3 for everything else") {
  CHECK(norm_of_small(at::kFloat)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-4)).epsilon(1e-4));
  CHECK(norm_of_small(at::kDouble)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-3)).epsilon(1e-4));
  // bfloat16 has 8 bits.
  CHECK(norm_of_small(at::kBFloat16)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-3)).epsilon(1e-2));
}

TEST_CASE("a stable norm divides by the largest entry, sign included") {
  GainNormImpl norm({3}, {.by_max = true});
  const at::Tensor x = torch::tensor({-4.0F, -2.0F, -1.0F});
  // Divided by -1 the order turns round.
  expect_close(norm.forward(x), GainNormImpl({3}).forward(-x), 1e-6, "stable");
}

TEST_CASE("parallel convolutions share the width: halves, quarters, the rest") {
  const auto widths = [](int64_t out, const std::vector<int64_t>& kernels) {
    std::vector<int64_t> found;
    for (const auto& item : CrossEmbedImpl(1, out, kernels, 1).named_parameters()) {
      if (item.key().ends_with(".bias")) found.push_back(item.value().size(0));
    }
    return found;
  };
  CHECK(widths(8, {3, 5, 7}) == std::vector<int64_t>{4, 2, 2});
  CHECK(widths(8, {3, 5}) == std::vector<int64_t>{4, 4});
  CHECK(widths(7, {3, 5, 7}) == std::vector<int64_t>{3, 1, 3});
  CHECK(widths(8, {3}) == std::vector<int64_t>{8});
  // The smallest kernel is the widest, in whatever order they are given.
  CrossEmbedImpl layer(3, 8, {15, 3, 7}, 1);
  CHECK(layer.named_parameters()["convs.0.weight"].sizes() == at::IntArrayRef({4, 3, 3, 3}));
  CHECK(layer.forward(wave({1, 3, 6, 4})).sizes() == at::IntArrayRef({1, 8, 6, 4}));
}

TEST_CASE("resampling equals ResizeRight up and down") {
  const at::Tensor image = wave({2, 3, 16, 16}, 0.05, 0.0, 0.5, 0.5);
  expect_golden(resize_image_to(image, 24), "resize 16->24", 1e-5);
  expect_golden(resize_image_to(image, 10, std::pair(0.0, 1.0)), "resize 16->10 clamp", 1e-5);
}

TEST_CASE("a square image gets exactly the size that was asked for") {
  // 100 / 11 * 11 is a little more than 100 in floating point.
  CHECK(resize_image_to(wave({1, 1, 11, 11}), 100).sizes() == at::IntArrayRef({1, 1, 100, 100}));
  CHECK(resize_image_to(wave({1, 1, 49, 49}), 7).sizes() == at::IntArrayRef({1, 1, 7, 7}));
  CHECK(resize_image_to(wave({1, 2, 8, 16}), 12).sizes() == at::IntArrayRef({1, 2, 6, 12}));
}

TEST_CASE("a size that sampling has met first can be trained with") {
  const at::Tensor image = at::rand({1, 2, 13, 13});
  {
    const c10::InferenceMode sampling;
    resize_image_to(image, 37);
  }
  const at::Tensor leaf = image.clone().set_requires_grad(true);
  const at::Tensor sum = resize_image_to(leaf, 37).sum();
  sum.backward();
  // It is linear in the image.
  CHECK((leaf.grad() * image).sum().item<double>() == Approx(sum.item<double>()).epsilon(1e-4));
}

TEST_CASE("an image of the right width comes back untouched, not even clamped") {
  const at::Tensor image = wave({1, 3, 8, 8}, 0.37, 0.0, 3.0);
  CHECK(resize_image_to(image, 8, std::pair(0.0, 1.0)).is_same(image));
}

TEST_CASE("nearest resampling makes any image square") {
  const at::Tensor image = wave({1, 1, 4, 8});
  const at::Tensor out = resize_image_to(image, 4, std::nullopt, /*nearest=*/true);
  REQUIRE(out.sizes() == at::IntArrayRef({1, 1, 4, 4}));
  CHECK(out[0][0][1][2].item<float>() == image[0][0][1][4].item<float>());
}

// Attention against the formulas of model.md, written out.
at::Tensor gain_norm(const at::Tensor& x, const at::Tensor& g) {
  const at::Tensor centred = x - x.mean({-1}, true);
  return centred * (centred.square().mean({-1}, true) + 1e-3).rsqrt() * g;  // float64: eps 1e-3
}

at::Tensor unit(const at::Tensor& x) {
  return x / x.square().sum({-1}, true).sqrt();
}

// Step by step as model.md, section 1.2.
at::Tensor cross_attention_written_out(const torch::nn::Module& module,
                                       const at::Tensor& x,
                                       const at::Tensor& context,
                                       bool cosine) {
  const auto p = module.named_parameters();
  const auto heads = [](const at::Tensor& t) { return t.unflatten(-1, {8, 64}).transpose(1, 2); };
  const at::Tensor kv = at::matmul(context, p["to_kv.weight"].t());
  at::Tensor q = heads(at::matmul(gain_norm(x, p["norm.g"]), p["to_q.weight"].t()));
  const auto with_null = [&](const at::Tensor& t, int64_t which) {
    const at::Tensor null = p["null_kv"][which].view({1, 1, 1, 64}).expand({x.size(0), 8, 1, 64});
    return at::cat({null, heads(t)}, 2);
  };
  at::Tensor k = with_null(kv.narrow(-1, 0, 512), 0);
  const at::Tensor v = with_null(kv.narrow(-1, 512, 512), 1);
  if (cosine) {
    q = unit(q);
    k = unit(k);
  }
  const at::Tensor logits = at::matmul(q, k.transpose(-1, -2)) * (cosine ? 16.0 : 0.125);
  const at::Tensor out = at::matmul(logits.softmax(-1), v).transpose(1, 2).flatten(2);
  return gain_norm(at::matmul(out, p["to_out.0.weight"].t()), p["to_out.1.g"]);
}

TEST_CASE("cross attention is the same folded and plain") {
  struct Case {
    int64_t pixels, tokens;
    bool cosine;
  };
  // Many pixels and few tokens are folded; a single pixel or cosine similarity is not.
  for (const Case& c :
       {Case{64, 6, false}, Case{1, 6, false}, Case{64, 6, true}, Case{2, 1, false}}) {
    INFO(c.pixels << " pixels, " << c.tokens << " tokens, cosine " << c.cosine);
    CrossAttentionImpl attention(5, 7, c.cosine);
    attention.to(at::kDouble);
    const at::Tensor x = wave({3, c.pixels, 5}).to(at::kDouble).set_requires_grad(true);
    const at::Tensor context = wave({3, c.tokens, 7}, 0.6).to(at::kDouble).set_requires_grad(true);
    const at::Tensor found = attention.forward(x, context);
    const at::Tensor expected = cross_attention_written_out(attention, x, context, c.cosine);
    expect_close(found, expected, 1e-10, "output");
    std::vector<at::Tensor> leaves = attention.parameters();
    leaves.push_back(x);
    leaves.push_back(context);
    const at::Tensor weights = wave(found.sizes(), 0.53).to(at::kDouble);
    const auto found_grads = torch::autograd::grad({(found * weights).sum()}, leaves);
    const auto expected_grads = torch::autograd::grad({(expected * weights).sum()}, leaves);
    for (size_t i = 0; i < leaves.size(); ++i) {
      INFO("gradient " << i);
      CHECK(at::allclose(found_grads[i], expected_grads[i], 1e-8, 1e-10));
    }
  }
}

// The map's, the context's and the parameters' gradients of what `attention` adds to the map; first the result.
std::vector<at::Tensor> map_and_gradients(CrossAttentionImpl& attention,
                                          const at::Tensor& map,
                                          const at::Tensor& context) {
  std::vector<at::Tensor> leaves = attention.parameters();
  leaves.push_back(map.detach().set_requires_grad(true));
  leaves.push_back(context.detach().set_requires_grad(true));
  const at::Tensor y = attention.add_to(leaves[leaves.size() - 2], leaves.back());
  const at::Tensor weights = wave(y.sizes(), 0.53).to(y.scalar_type());
  std::vector<at::Tensor> all = torch::autograd::grad({(y * weights).sum()}, leaves);
  all.insert(all.begin(), y.detach());
  return all;
}

TEST_CASE("cross attention of a map in one operation is the plain form, in fewer calls") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t batch : {1, 3}) {
      INFO(dtype << ", batch of " << batch);
      CrossAttentionImpl attention(16, 7, /*cosine_sim=*/false);
      attention.to(dtype);
      const at::Tensor map =
          wave({batch, 16, 8, 4}).to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor context = wave({batch, 6, 7}, 0.6).to(dtype);
      std::vector<at::Tensor> found, expected;
      const HostCounts one =
          host_counts_of([&] { found = map_and_gradients(attention, map, context); });
      HostCounts many;
      {
        const PlainAlgorithms plain;
        many = host_counts_of([&] { expected = map_and_gradients(attention, map, context); });
      }
      // Those of the test among them. A processor without products of bfloat16 takes them apart.
      if (dtype != at::kBFloat16) CHECK(3 * one.operations < 2 * many.operations);
      // The sums of bfloat16 are rounded in another order.
      const double tolerance = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 2e-5 : 4e-2;
      for (size_t i = 0; i < expected.size(); ++i) {
        INFO("result or gradient " << i);
        CHECK(found[i].scalar_type() == expected[i].scalar_type());
        const double largest = expected[i].abs().max().item<double>();
        CHECK((found[i] - expected[i]).abs().max().item<double>() <= tolerance * largest);
      }
    }
  }
}

at::Tensor draw(const RandomAddress& address) {
  return at::randn({8}, make_generator(address, at::kCPU));
}

TEST_CASE("an address always gives the same numbers") {
  const RandomAddress address{7, "train", 3, 41, 1};
  CHECK(at::equal(draw(address), draw(address)));
}

TEST_CASE("every part of an address matters") {
  std::set<uint64_t> seen;
  for (const int64_t seed : {0, 1}) {
    for (const char* purpose : {"train", "sample"}) {
      for (const int64_t epoch : {0, 1}) {
        for (const int64_t step : {0, 1, 2}) {
          for (const int64_t rank : {0, 1})
            seen.insert(hash_address({seed, purpose, epoch, step, rank}));
        }
      }
    }
  }
  CHECK(seen.size() == 48);
  CHECK_FALSE(at::equal(draw({0, "train", 0, 1, 0}), draw({0, "train", 1, 0, 0})));
}

TEST_CASE("addresses whose hashes differ only in the high half give other numbers") {
  // at::mt19937 takes only the low half in. By the birthday bound some pair of 200,000 shares it.
  std::map<uint32_t, int64_t> steps;
  int64_t pairs = 0;
  for (int64_t step = 0; step < 200'000; ++step) {
    const auto low = static_cast<uint32_t>(hash_address({0, "train", 0, step, 0}));
    const auto [other, is_new] = steps.emplace(low, step);
    if (is_new) continue;
    ++pairs;
    const RandomAddress a{0, "train", 0, step, 0}, b{0, "train", 0, other->second, 0};
    CHECK_FALSE(at::equal(draw(a), draw(b)));
  }
  CHECK(pairs > 0);
}

TEST_CASE("the numbers of an address are evenly spread and do not hang on its neighbours'") {
  at::Tensor sum = at::zeros({2000}), products = at::zeros({2000});
  at::Tensor before = at::zeros({2000});
  constexpr int64_t kSteps = 500;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor drawn = at::randn({2000}, make_generator({0, "train", 0, step, 0}, at::kCPU));
    sum += drawn;
    products += drawn * before;
    before = drawn;
  }
  // Means of 1,000,000 normal numbers: five standard deviations.
  CHECK(std::abs(sum.mean().item<double>() / kSteps) < 5e-3);
  CHECK(std::abs(products.mean().item<double>() / kSteps) < 5e-3);
  // Of 2,000 means over the steps none is far out.
  CHECK((sum / std::sqrt(kSteps)).abs().max().item<double>() < 5);
}

TEST_CASE("deterministic mode refuses operations that have no such algorithm") {
  at::Context& context = at::globalContext();
  at::Tensor target = at::zeros({4});
  const auto put = [&] { target.put_(at::tensor({1, 2}, at::kLong), at::ones({2})); };
  CHECK_NOTHROW(put());
  search_for_algorithms();
  CHECK(context.benchmarkCuDNN());
  use_deterministic_algorithms();
  CHECK(context.deterministicAlgorithms());
  CHECK(context.deterministicCuDNN());
  CHECK_FALSE(context.benchmarkCuDNN());
  CHECK_FALSE(context.deterministicFillUninitializedMemory());
  CHECK(std::getenv("CUBLAS_WORKSPACE_CONFIG") != nullptr);
  CHECK_THROWS_WITH(put(), Catch::Contains("does not have a deterministic implementation"));
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicCuDNN(false);
}

TEST_CASE("a way on the sphere turns at an even pace and ends where it is to") {
  const at::Tensor from = torch::tensor({{1.0F, 0.0F, 0.0F}});
  const at::Tensor to = torch::tensor({{0.0F, 3.0F, 0.0F}});
  CHECK(at::allclose(slerp(from, to, 0), from));
  CHECK(at::allclose(slerp(from, to, 1), to, 1e-5, 1e-6));
  for (const double share : {0.25, 0.5, 0.7}) {
    const at::Tensor between = slerp(from, to, share);
    CHECK(between.norm().item<double>() == Approx(1 + 2 * share));
    const double angle = std::atan2(between[0][1].item<double>(), between[0][0].item<double>());
    CHECK(angle == Approx(share * std::numbers::pi / 2));
  }
}

TEST_CASE("one embedding stands for all, and equal or opposite ones give no NaN") {
  const at::Tensor one = torch::tensor({{0.6F, 0.8F}});
  const at::Tensor many = torch::tensor({{0.6F, 0.8F}, {-0.6F, -0.8F}, {0.8F, -0.6F}});
  const at::Tensor halfway = slerp(one, many, 0.5);
  CHECK(halfway.sizes() == at::IntArrayRef{3, 2});
  CHECK(at::isfinite(halfway).all().item<bool>());
  CHECK(at::allclose(halfway[0], one[0]));
  CHECK(at::allclose(slerp(many, many, 0.3), many));
}

TEST_CASE("the difference of two texts has length 1, and none if they are the same") {
  const at::Tensor from = torch::tensor({{1.0F, 2.0F}}), to = torch::tensor({{4.0F, 6.0F}});
  CHECK(at::allclose(text_difference(from, to), torch::tensor({{0.6F, 0.8F}})));
  CHECK_FALSE(at::isfinite(text_difference(from, from)).any().item<bool>());
}

}  // namespace
}  // namespace dalle2::test
