// SPDX-License-Identifier: MIT
// Attention against the formulas of model.md, written out.
#include <cmath>

#include "model/attention.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

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

TEST_CASE("self attention scales its logits by 1 / dim_head and sees a null key first") {
  const int64_t heads = 3, d = 4;
  AttentionImpl attention(5, heads, d, /*cosine_sim=*/false);
  attention.to(at::kDouble);
  const auto p = attention.named_parameters();
  const at::Tensor x = wave({2, 9, 5}).to(at::kDouble);
  const at::Tensor normed = gain_norm(x, p["norm.g"]);
  const at::Tensor q =
      at::matmul(normed, p["to_q.weight"].t()).unflatten(-1, {heads, d}).transpose(1, 2);
  const at::Tensor kv = at::matmul(normed, p["to_kv.weight"].t());
  const auto with_null = [&](int64_t which) {
    const at::Tensor null = p["null_kv"][which].view({1, 1, d}).expand({2, 1, d});
    return at::cat({null, kv.narrow(-1, which * d, d)}, 1).unsqueeze(1);
  };
  const at::Tensor logits = at::matmul(q, with_null(0).transpose(-1, -2)) / static_cast<double>(d);
  const at::Tensor out = at::matmul(logits.softmax(-1), with_null(1)).transpose(1, 2).flatten(2);
  const at::Tensor expected = gain_norm(at::matmul(out, p["to_out.0.weight"].t()), p["to_out.1.g"]);
  expect_close(attention.forward(x), expected, 1e-10, "output");
}

}  // namespace
}  // namespace dalle2::test
