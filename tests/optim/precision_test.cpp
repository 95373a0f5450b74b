// SPDX-License-Identifier: MIT
#include "optim/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>

#include "optim/flat_parameters.h"
#include "optim/tf32.h"

namespace dalle2 {
namespace {

at::ScalarType product_type() {
  const at::Tensor x = at::ones({2, 2});
  return at::matmul(x, x).scalar_type();
}

TEST_CASE("products are computed in the precision asked for, as long as the guard lives") {
  const torch::NoGradGuard no_grad;
  for (const auto& [precision, type] : {std::pair(MixedPrecision::no, at::kFloat),
                                        std::pair(MixedPrecision::bf16, at::kBFloat16),
                                        std::pair(MixedPrecision::fp16, at::kHalf)}) {
    {
      const Autocast autocast(at::kCPU, precision);
      CHECK(product_type() == type);
    }
    CHECK(product_type() == at::kFloat);
  }
}

TEST_CASE("an exception leaves full precision behind") {
  try {
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    throw std::runtime_error("in the forward pass");
  } catch (const std::runtime_error&) {
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("weights that change between two passes are cast again") {
  const at::Tensor weight = at::ones({2, 2}).set_requires_grad(true);
  const auto product = [&] {
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    return at::linear(at::ones({1, 2}), weight)[0][0].item<float>();
  };
  CHECK(product() == 2.0F);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(3.0);
  }
  CHECK(product() == 6.0F);
}

TEST_CASE("amp takes what the device does well, unless a precision is named") {
  const auto chosen = [](std::optional<MixedPrecision> asked, bool amp, bool gpu, bool bfloat16) {
    return choose_precision(asked, amp, {.is_gpu = gpu, .bfloat16 = bfloat16});
  };
  CHECK(chosen({}, false, true, true).precision == MixedPrecision::no);
  CHECK_THAT(chosen({}, false, true, true).reason, Catch::Contains("/train/amp is false"));
  CHECK(chosen({}, false, true, false).reason.empty());
  CHECK(chosen({}, false, false, true).reason.empty());
  CHECK(chosen({}, true, true, true).precision == MixedPrecision::bf16);
  CHECK(chosen({}, true, true, false).precision == MixedPrecision::fp16);
  CHECK(chosen({}, true, false, true).precision == MixedPrecision::bf16);
  CHECK(chosen({}, true, false, false).precision == MixedPrecision::no);
  CHECK_THAT(chosen({}, true, false, false).reason, Catch::Contains("full precision"));
  CHECK(chosen(MixedPrecision::fp16, true, false, true).precision == MixedPrecision::fp16);
  CHECK(chosen(MixedPrecision::no, true, true, true).precision == MixedPrecision::no);
  CHECK_FALSE(half_precision_support(at::kCPU).is_gpu);
}

TEST_CASE("a single number that is not finite is found in any tensor") {
  std::vector<at::Tensor> tensors = {at::ones({1000}), at::empty({0}), at::full({7}, 3e38)};
  CHECK(all_finite(tensors));
  for (const float wrong : {NAN, INFINITY, -INFINITY}) {
    for (const int64_t place : {0, 517, 999}) {
      tensors[0] = at::ones({1000});
      tensors[0][place] = wrong;
      CHECK_FALSE(all_finite(tensors));
    }
  }
  CHECK(all_finite({}));
}

TEST_CASE("TF32 is in force where it was asked for, and nowhere else") {
  const at::Context& context = at::globalContext();
  CHECK(tf32_in_use() == Tf32::convolutions);  // LibTorch's default
  for (const Tf32 where :
       {Tf32::all, Tf32::no, Tf32::convolutions, Tf32::all, Tf32::convolutions}) {
    use_tf32(where);
    CHECK(tf32_in_use() == where);
    CHECK(context.allowTF32CuBLAS() == (where == Tf32::all));
    CHECK(context.allowTF32CuDNN(at::Float32Op::CONV) == (where != Tf32::no));
  }
}

TEST_CASE("what is computed in plain float32 leaves the setting as it was") {
  for (const Tf32 where : {Tf32::no, Tf32::all, Tf32::convolutions}) {
    use_tf32(where);
    {
      const PlainFloat32 plain;
      CHECK(tf32_in_use() == Tf32::no);
      const PlainFloat32 within;
      CHECK(tf32_in_use() == Tf32::no);
    }
    CHECK(tf32_in_use() == where);
  }
}

TEST_CASE("people read of TF32 only where there is some") {
  CHECK(tf32_text(Tf32::all, at::kCPU).empty());
  CHECK(tf32_text(Tf32::no, at::kCUDA) == "no TF32");
  CHECK(tf32_text(Tf32::convolutions, at::kCUDA) == "TF32 in convolutions");
  CHECK(tf32_text(Tf32::all, at::kCUDA) == "TF32 in convolutions and matrix products");
}

}  // namespace
}  // namespace dalle2
