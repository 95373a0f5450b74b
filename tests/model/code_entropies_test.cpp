// SPDX-License-Identifier: MIT
#include "model/vae/quantizer.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

#include <cmath>

namespace dalle2::test {
namespace {

/// As the definition has it, with a number for each token and code.
CodeEntropies plain_entropies(const at::Tensor& tokens) {
  const at::Tensor codes = sign_codes(tokens.size(1), tokens.options().requires_grad(false));
  const at::Tensor shares = (at::matmul(tokens, codes.t()) * 200).softmax(-1);
  const auto entropy = [](const at::Tensor& p) { return -(p * p.clamp_min(1e-5).log()).sum(-1); };
  return {entropy(shares).mean(), entropy(shares.mean(0))};
}

at::Tensor gradient_of(CodeEntropies (*entropies)(const at::Tensor&), at::Tensor tokens) {
  tokens = tokens.clone().requires_grad_();
  const CodeEntropies found = entropies(tokens);
  (0.7 * found.per_token - 2.5 * found.of_mean).backward();
  return tokens.grad();
}

TEST_CASE("all codes of signs, the highest bit first") {
  const at::Tensor codes = sign_codes(2, at::kDouble);
  CHECK(at::equal(codes, torch::tensor({{-1., -1.}, {-1., 1.}, {1., -1.}, {1., 1.}}, at::kDouble)));
  CHECK(sign_codes(0, at::kDouble).sizes() == at::IntArrayRef({1, 0}));
}

TEST_CASE("the entropies of codes are those of the definition, and so are the gradients") {
  torch::manual_seed(1);
  for (const int64_t bits : {1, 2, 5, 9, 10}) {
    // From tokens that may be any code to such as are nearly sure.
    for (const double size : {1e-4, 3e-3, 1e-2, 0.2}) {
      // More than a slice of ten bits holds, at the last place.
      const at::Tensor tokens = at::randn({bits == 10 ? 600 : 7, bits}, at::kDouble) * size;
      INFO("bits " << bits << ", size " << size);
      const CodeEntropies found = code_entropies(tokens), plain = plain_entropies(tokens);
      CHECK(found.per_token.item<double>() ==
            Approx(plain.per_token.item<double>()).epsilon(1e-9).margin(1e-12));
      CHECK(found.of_mean.item<double>() ==
            Approx(plain.of_mean.item<double>()).epsilon(1e-9).margin(1e-12));
      const at::Tensor gradient = gradient_of(code_entropies, tokens),
                       expected = gradient_of(plain_entropies, tokens);
      CHECK((gradient - expected).abs().max().item<double>() <=
            1e-9 * (1 + expected.abs().max().item<double>()));
    }
  }
}

TEST_CASE("a distribution over a code a token is sure of has no entropy") {
  const at::Tensor sure = torch::tensor({{1.0, -1.0, 1.0}, {1.0, 1.0, 1.0}}, at::kDouble);
  const CodeEntropies found = code_entropies(sure);
  CHECK(found.per_token.item<double>() == Approx(0).margin(1e-12));
  CHECK(found.of_mean.item<double>() == Approx(std::log(2.0)));  // two codes of eight, evenly
}

}  // namespace
}  // namespace dalle2::test
