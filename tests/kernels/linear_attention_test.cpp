// SPDX-License-Identifier: MIT
#include "kernels/attention/linear_attention.h"

#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace dalle2::test {
namespace {

/// The same of ATen's operations, in float64.
LinearAttentionParts plain_parts(const at::Tensor& qkv) {
  const std::vector<at::Tensor> parts = qkv.to(at::kDouble).unbind(2);
  const at::Tensor norm = parts[2].norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-12);
  return {parts[0].softmax(-1).transpose(1, 2),
          parts[1].softmax(1).transpose(1, 2),
          (parts[2] / norm).transpose(1, 2)};
}

/// @param digits of the type: the largest difference by the largest value
void expect_parts(const at::Tensor& qkv, double digits) {
  REQUIRE(has_linear_attention_parts(qkv));
  const LinearAttentionParts found = linear_attention_parts(qkv), expected = plain_parts(qkv);
  const auto check = [&](const char* name, const at::Tensor& one, const at::Tensor& other) {
    INFO(name << " of " << qkv.sizes());
    CHECK(one.scalar_type() == qkv.scalar_type());
    CHECK(one.is_contiguous());
    REQUIRE(one.sizes() == other.sizes());
    const at::Tensor limit = other.abs() * digits + 1e-9;
    CHECK(((one.to(at::kDouble) - other).abs() <= limit).all().item<bool>());
  };
  check("q", found.q, expected.q);
  check("k", found.k, expected.k);
  check("v", found.v, expected.v);
}

TEST_CASE("the parts of linear attention are those of ATen's operations") {
  torch::manual_seed(7);
  const c10::InferenceMode inference;
  for (const auto& shape : {std::vector<int64_t>{2, 37, 3, 3, 64},
                            std::vector<int64_t>{1, 1, 3, 2, 5},
                            std::vector<int64_t>{1, 260, 3, 1, 256}}) {
    const at::Tensor qkv = torch::randn(shape) * 4;
    expect_parts(qkv, 4e-6);                      // sums of some hundred exponentials in float32
    expect_parts(qkv.to(at::kBFloat16), 0x1p-8);  // one rounding to 8 bits
  }
}

TEST_CASE("rows without length, and large values, stay finite") {
  const c10::InferenceMode inference;
  at::Tensor qkv = torch::zeros({1, 3, 3, 1, 4});
  expect_parts(qkv, 1e-6);
  qkv.select(2, 0).fill_(3e38);
  qkv.select(2, 1).fill_(-3e38);
  expect_parts(qkv, 1e-6);
  qkv.index_put_({0, 1, 0, 0, 2}, std::nan(""));
  const LinearAttentionParts parts = linear_attention_parts(qkv);
  CHECK(parts.q[0][0][1].isnan().all().item<bool>());
  CHECK(parts.q[0][0][0].isfinite().all().item<bool>());
}

TEST_CASE("other passes than inference, wide heads and other types have no such loops") {
  const at::Tensor qkv = torch::randn({1, 4, 3, 2, 8});
  CHECK_FALSE(has_linear_attention_parts(qkv));
  const c10::InferenceMode inference;
  CHECK(has_linear_attention_parts(qkv));
  CHECK_FALSE(has_linear_attention_parts(qkv.to(at::kDouble)));
  CHECK_FALSE(has_linear_attention_parts(qkv.transpose(1, 3)));
  CHECK_FALSE(has_linear_attention_parts(torch::randn({1, 4, 3, 2, 257})));
}

}  // namespace
}  // namespace dalle2::test
