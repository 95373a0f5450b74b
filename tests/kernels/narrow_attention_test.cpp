// SPDX-License-Identifier: MIT
#include "kernels/attention/narrow_attention.h"

#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

namespace dalle2::test {
namespace {

constexpr int64_t kWidth = 16;

TEST_CASE("attention with narrow heads is the softmax of the products, in float64") {
  torch::manual_seed(11);
  const c10::InferenceMode inference;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  // Fewer queries than a group, several tiles of queries and of keys, and a tile with one key.
  const auto [queries, keys] = GENERATE(std::pair<int64_t, int64_t>{1, 1},
                                        std::pair<int64_t, int64_t>{3, 5},
                                        std::pair<int64_t, int64_t>{64, 256},
                                        std::pair<int64_t, int64_t>{1030, 257},
                                        std::pair<int64_t, int64_t>{259, 530});
  CAPTURE(queries, keys, c10::toString(dtype));
  const at::Tensor q = (torch::randn({2, 1, queries, kWidth}) * 3).to(dtype);
  const at::Tensor kv = (torch::randn({2, 1, keys, 2 * kWidth}) * 3).to(dtype);
  const at::Tensor k = kv.narrow(-1, 0, kWidth), v = kv.narrow(-1, kWidth, kWidth);
  const double scale = 1.0 / kWidth;
  const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const at::Tensor expected =
      at::matmul((at::matmul(exact(q), exact(k).transpose(-1, -2)) * scale).softmax(-1), exact(v));
  const at::Tensor found = narrow_attention(q, k, v, scale);
  CHECK(found.scalar_type() == dtype);
  REQUIRE(found.sizes() == expected.sizes());
  const double rest = ((exact(found) - expected).norm() / expected.norm()).item<double>();
  CHECK(rest < (dtype == at::kFloat ? 2e-6 : 4e-3));  // float32 sums; one rounding to 8 bits
}

TEST_CASE("scores far apart choose one value, and a value that is not finite stays where it is") {
  const c10::InferenceMode inference;
  at::Tensor q = torch::zeros({1, 1, 9, kWidth}), kv = torch::zeros({1, 1, 300, 2 * kWidth});
  q.fill_(1);
  for (int64_t key = 0; key < 300; ++key) kv[0][0][key][kWidth].fill_(static_cast<double>(key));
  kv[0][0][270][3].fill_(1000);
  kv[0][0][2][3].fill_(-1e30);
  const at::Tensor k = kv.narrow(-1, 0, kWidth), v = kv.narrow(-1, kWidth, kWidth);
  const at::Tensor out = narrow_attention(q, k, v, 1.0);
  CHECK(at::allclose(out.select(-1, 0), torch::full({1, 1, 9}, 270.0)));
  q[0][0][4][0].fill_(std::nan(""));
  const at::Tensor with_nan = narrow_attention(q, k, v, 1.0);
  CHECK(with_nan[0][0][4].isnan().all().item<bool>());
  CHECK(with_nan[0][0][3].isfinite().all().item<bool>());
  CHECK(with_nan[0][0][5].isfinite().all().item<bool>());
}

TEST_CASE("other heads and passes have no attention of ours") {
  const at::Tensor q = torch::randn({1, 1, 4, kWidth}), k = torch::randn({1, 1, 5, kWidth});
  CHECK_FALSE(has_narrow_attention(q, k, k));
  const c10::InferenceMode inference;
  CHECK(has_narrow_attention(q, k, k));
  CHECK_FALSE(has_narrow_attention(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble)));
  CHECK_FALSE(has_narrow_attention(q, k, k.to(at::kBFloat16)));
  CHECK_FALSE(has_narrow_attention(torch::randn({1, 2, 4, kWidth}), k, k));
  CHECK_FALSE(has_narrow_attention(torch::randn({1, 1, 4, 32}), k, k));
}

}  // namespace
}  // namespace dalle2::test
