// SPDX-License-Identifier: MIT
#include "optim/flat_parameters.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>

#include "flat_module.h"
#include "optim/average_rule.h"
#include "optim/optimizer.h"

namespace dalle2 {
namespace {

std::vector<std::pair<int64_t, int64_t>> bounds(int64_t numel, int64_t count) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const FlatSlice& slice : split_flat(numel, count)) all.emplace_back(slice.begin, slice.end);
  return all;
}

/// Three parameters of which slices cut two.
StateDict some_parameters() {
  return {{"weight", at::arange(50.0, at::kFloat).view({5, 10}) / 10},
          {"other", at::linspace(-1, 1, 40, at::kFloat).view({8, 5})},
          {"bias", at::linspace(1, 2, 9, at::kFloat)}};
}

StateDict gradients_of_step(int64_t step) {
  StateDict gradients;
  for (const auto& [name, value] : some_parameters()) {
    // One parameter has its first gradient late: its step count differs.
    if (name == "other" && step == 0) continue;
    gradients.emplace_back(name, (value + static_cast<double>(step)).sin());
  }
  return gradients;
}

/// Finer than those of split_flat, so that they cut the parameters above.
std::vector<FlatSlice> cut_in_three(const FlatParameters& parameters) {
  return {{0, 48}, {48, 96}, {96, parameters.values().numel()}};
}

TEST_CASE("a flat buffer is shared out in whole rows, and the last owner has the rest") {
  using Bounds = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(bounds(2 * kFlatRow, 2) == Bounds{{0, 1024}, {1024, 2048}});
  CHECK(bounds(8 * kFlatRow + 16, 3) == Bounds{{0, 2048}, {2048, 4096}, {4096, 8208}});
  CHECK(bounds(kFlatRow, 3) == Bounds{{0, 0}, {0, 0}, {0, 1024}});
  CHECK(bounds(0, 2) == Bounds{{0, 0}, {0, 0}});
}

TEST_CASE("what two slices have in common") {
  const FlatSlice slice{16, 48};
  CHECK(slice.overlap({0, 20}).length() == 4);
  CHECK(slice.overlap({40, 90}).begin == 40);
  CHECK(slice.overlap({40, 90}).end == 48);
  CHECK(slice.overlap({48, 90}).length() == 0);
  CHECK(slice.overlap({0, 16}).length() == 0);
}

TEST_CASE("of a tensor that reaches over the edges of a slice the middle is copied") {
  const at::Tensor own = at::zeros({4});
  copy_into_slice(own, {10, 14}, /*offset=*/8, at::arange(8.0, at::kFloat).view({2, 4}));
  CHECK(at::equal(own, torch::tensor({2.0F, 3.0F, 4.0F, 5.0F})));
  copy_into_slice(own, {10, 14}, /*offset=*/12, at::full({9}, -1.0F));
  CHECK(at::equal(own, torch::tensor({2.0F, 3.0F, -1.0F, -1.0F})));
  copy_into_slice(own, {10, 14}, /*offset=*/14, at::full({2}, 7.0F));
  CHECK(at::equal(own, torch::tensor({2.0F, 3.0F, -1.0F, -1.0F})));
}

TEST_CASE("optimizers of slices together make the bits that one makes, and keep no more moments") {
  test::FlatModule one(some_parameters()), several(some_parameters());
  const FlatParameters whole(one), cut(several);
  FlatGradients gradients(whole), gradients_of_cut(cut);
  Optimizer optimizer(whole, {.weight_decay = 0.1});
  const std::vector<FlatSlice> slices = cut_in_three(cut);
  std::vector<Optimizer> owners;
  int64_t kept = 0;
  for (const FlatSlice& slice : slices) {
    owners.emplace_back(cut, OptimizerOptions{.weight_decay = 0.1}).keep_slice(slice);
    kept += owners.back().moments().exp_avg.numel();
    CHECK(owners.back().moments().exp_avg_sq.numel() <= slice.length());
  }
  CHECK(kept == optimizer.moments().exp_avg.numel());
  for (int64_t step = 0; step < 4; ++step) {
    one.backward(gradients_of_step(step));
    several.backward(gradients_of_step(step));
    test::update(optimizer, gradients, 1e-2);
    for (Optimizer& owner : owners) test::update(owner, gradients_of_cut, 1e-2);
    gradients.zero_grad();
    gradients_of_cut.zero_grad();
  }
  CHECK(at::equal(cut.values(), whole.values()));
  std::vector<at::Tensor> exp_avg, exp_avg_sq;
  for (const Optimizer& owner : owners) {
    exp_avg.push_back(owner.moments().exp_avg);
    exp_avg_sq.push_back(owner.moments().exp_avg_sq);
  }
  const FlatMoments together{at::cat(exp_avg), at::cat(exp_avg_sq)};
  CHECK(at::equal(together.exp_avg, optimizer.moments().exp_avg));
  CHECK(at::equal(together.exp_avg_sq, optimizer.moments().exp_avg_sq));
  for (size_t i = 0; i < 3; ++i) {
    INFO(whole.parameters()[i].name);
    const auto expected = optimizer.state(i), found = owners[1].state(i, together);
    REQUIRE(expected);
    REQUIRE(found);
    CHECK(found->step == expected->step);
    CHECK(at::equal(found->exp_avg, expected->exp_avg));
    CHECK_THROWS(owners[1].state(i));  // its own are those of a slice
  }

  // A state of whole parameters goes into the slices.
  for (size_t s = 0; s < slices.size(); ++s) {
    Optimizer fresh(cut, {.weight_decay = 0.1});
    fresh.keep_slice(slices[s]);
    for (size_t i = 0; i < 3; ++i) fresh.set_state(i, *optimizer.state(i));
    CHECK(at::equal(fresh.moments().exp_avg, exp_avg[s]));
    CHECK(at::equal(fresh.moments().exp_avg_sq, exp_avg_sq[s]));
    fresh.forget();
    CHECK(fresh.state(0, together) == std::nullopt);
  }
}

TEST_CASE("averages of slices together make the bits that one makes") {
  test::FlatModule module(some_parameters());
  const FlatParameters online(module);
  AveragesConfig config;
  config.ema_update_after_step = config.ema_update_every = 1;
  EmaConfig one_call;
  one_call.foreach = true;
  const std::vector<std::function<std::unique_ptr<AverageRule>()>> makers = {
      [&] { return std::make_unique<EmaPytorchRule>(config); },
      [] { return std::make_unique<DiffusersRule>(EmaConfig{}); },
      [&] { return std::make_unique<DiffusersRule>(one_call); },
      [] { return std::make_unique<PowerRule>(6.94); }};
  for (const auto& make : makers) {
    const at::Tensor weights = online.values().clone(), average = weights.clone();
    const std::vector<FlatSlice> slices = cut_in_three(online);
    const auto rule = make();
    std::vector<std::unique_ptr<AverageRule>> rules;
    std::vector<at::Tensor> averages;
    for (const FlatSlice& slice : slices) {
      rules.push_back(make());
      averages.push_back(slice.of(weights).clone());
    }
    for (int step = 0; step < 6; ++step) {
      weights.mul_(1.25);
      rule->update(average, weights);
      rule->count();
      for (size_t s = 0; s < slices.size(); ++s) {
        rules[s]->update(averages[s], slices[s].of(weights));
        rules[s]->count();
      }
    }
    CHECK(at::equal(at::cat(averages), average));
    CHECK_FALSE(at::equal(average, weights));
  }
}

}  // namespace
}  // namespace dalle2
