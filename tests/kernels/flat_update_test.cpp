// SPDX-License-Identifier: MIT
#include "kernels/flat_update.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace dalle2::test {
namespace {

constexpr int64_t kLength = 3 * 1024 + 48;  // not a whole number of rows
constexpr double kLr = 3e-3, kDecay = 1e-2, kBeta1 = 0.9, kBeta2 = 0.99, kAdamEps = 1e-8;
constexpr double kShare = 0.07;

loops::AdamStep step_of(int64_t t, double divisor) {
  const auto number = static_cast<double>(t);
  return {.grad_factor = static_cast<float>(1 / divisor),
          .kept = static_cast<float>(1 - kLr * kDecay),
          .taken1 = static_cast<float>(1 - kBeta1),
          .beta2 = static_cast<float>(kBeta2),
          .taken2 = static_cast<float>(1 - kBeta2),
          .step_size = static_cast<float>(kLr / (1 - std::pow(kBeta1, number))),
          .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, number))),
          .eps = static_cast<float>(kAdamEps),
          .average_weight = static_cast<float>(kShare)};
}

AdamStretch drawn_stretch() {
  torch::manual_seed(3);
  AdamStretch stretch;
  stretch.weights = torch::randn({kLength});
  stretch.grads = torch::randn({kLength}) * 0.1;
  stretch.exp_avg = torch::zeros({kLength});
  stretch.exp_avg_sq = torch::zeros({kLength});
  stretch.average = torch::randn({kLength});
  stretch.halves = torch::zeros({kLength}, torch::kBFloat16);
  return stretch;
}

AdamStretch copy_of(const AdamStretch& s) {
  return {s.weights.clone(),
          s.grads.clone(),
          s.exp_avg.clone(),
          s.exp_avg_sq.clone(),
          s.average.clone(),
          s.halves.clone()};
}

void update_by_torch(const AdamStretch& s, const at::Tensor& count, const at::Tensor& divisor) {
  at::_fused_adamw_({s.weights},
                    {s.grads},
                    {s.exp_avg},
                    {s.exp_avg_sq},
                    {},
                    {count},
                    kLr,
                    kBeta1,
                    kBeta2,
                    kDecay,
                    kAdamEps,
                    /*amsgrad=*/false,
                    /*maximize=*/false,
                    divisor);
}

TEST_CASE("an update is that of LibTorch's fused AdamW, and takes average and halves along") {
  const AdamStretch ours = drawn_stretch(), theirs = copy_of(ours);
  const at::Tensor count = torch::zeros({}), divisor = torch::full({}, 2.5);
  for (int64_t t = 1; t <= 20; ++t) {
    const at::Tensor grads = torch::randn({kLength}) * std::pow(10.0, -static_cast<double>(t % 4));
    ours.grads.copy_(grads);
    count.add_(1);
    adam_update_(step_of(t, 2.5), ours);
    theirs.grads.copy_(grads);
    update_by_torch(theirs, count, divisor);
    theirs.average.lerp_(theirs.weights, kShare);
    // Rounding alone: the gradient is multiplied by 1 / 2.5, and products are fused with sums.
    CHECK(at::allclose(ours.weights, theirs.weights, 1e-5, 1e-6));
    CHECK(at::allclose(ours.exp_avg, theirs.exp_avg, 1e-5, 1e-7));
    CHECK(at::allclose(ours.exp_avg_sq, theirs.exp_avg_sq, 1e-5, 1e-9));
    CHECK(at::allclose(ours.average, theirs.average, 1e-5, 1e-6));
    CHECK(at::equal(ours.halves, ours.weights.to(at::kBFloat16)));
  }
}

TEST_CASE("moments leave the denormal numbers, and weights are those of LibTorch all the same") {
  const AdamStretch ours = drawn_stretch();
  ours.grads.zero_();
  ours.exp_avg.fill_(-3e-39);
  ours.exp_avg_sq.fill_(2e-40);
  const AdamStretch theirs = copy_of(ours);
  adam_update_(step_of(700, 1), ours);
  update_by_torch(theirs, torch::full({}, 700.0), torch::ones({}));
  CHECK(at::allclose(ours.weights, theirs.weights, 1e-6, 0));
  CHECK(ours.exp_avg.eq(0).all().item<bool>());
  CHECK(ours.exp_avg_sq.eq(1e-36F).all().item<bool>());
  ours.exp_avg_sq.zero_();  // as of padding
  adam_update_(step_of(701, 1), ours);
  CHECK(ours.exp_avg_sq.eq(0).all().item<bool>());
}

TEST_CASE("an update has the same bits with and without company, and cut anywhere") {
  const AdamStretch whole = drawn_stretch(), alone = copy_of(whole), cut = copy_of(whole);
  AdamStretch bare = alone;
  bare.average = bare.halves = at::Tensor();
  const at::Tensor untouched = alone.average.clone();
  adam_update_(step_of(1, 1), whole);
  adam_update_(step_of(1, 1), bare);
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {16, 1040}, {1040, kLength}}) {
    const auto part = [begin = begin, end = end](const at::Tensor& t) {
      return t.slice(0, begin, end);
    };
    adam_update_(step_of(1, 1),
                 {part(cut.weights),
                  part(cut.grads),
                  part(cut.exp_avg),
                  part(cut.exp_avg_sq),
                  part(cut.average),
                  part(cut.halves)});
  }
  for (const AdamStretch* other : {&alone, &cut}) {
    CHECK(at::equal(other->weights, whole.weights));
    CHECK(at::equal(other->exp_avg, whole.exp_avg));
    CHECK(at::equal(other->exp_avg_sq, whole.exp_avg_sq));
  }
  CHECK(at::equal(cut.average, whole.average));
  CHECK(at::equal(cut.halves, whole.halves));
  CHECK(at::equal(alone.average, untouched));
}

TEST_CASE("a copy out of half precision has the values of copy_, whatever the layout") {
  torch::manual_seed(8);
  const at::Tensor flat = torch::zeros({1 << 18});
  for (const bool last : {false, true}) {
    for (const int64_t channels : {3, 32, 64}) {  // 3: too few
      const at::Tensor from =
          torch::randn({48, channels, 3, 3})
              .to(at::kBFloat16)
              .contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
      at::Tensor to = flat.narrow(0, 16, from.numel()).as_strided(from.sizes(), from.strides(), 16);
      copy_from_half_(to, from);
      CHECK(at::equal(to, from.to(at::kFloat)));
      to = flat.narrow(0, 16, from.numel()).view({48, 3, 3, channels}).permute({0, 3, 1, 2});
      copy_from_half_(to, from);
      CHECK(at::equal(to, from.to(at::kFloat)));
    }
  }
  CHECK(flat.narrow(0, 0, 16).abs().sum().item<float>() == 0);
}

}  // namespace
}  // namespace dalle2::test
