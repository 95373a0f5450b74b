// SPDX-License-Identifier: MIT
#include "optim/flat_parameters.h"

#include "flat_module.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

StateDict three_parameters() {
  return {
      {"bias", test::wave({3})}, {"weight", test::wave({5, 7})}, {"token", test::wave({1, 2, 2})}};
}

/// The three, flat, with their gradients.
struct Three {
  test::FlatModule module{three_parameters()};
  FlatParameters flat{module};
  FlatGradients gradients{flat};
};

TEST_CASE("the tensors of a module become views of one buffer and keep their values") {
  test::FlatModule module(three_parameters());
  const at::Tensor weight = module.parameter("weight");
  const at::Tensor before = weight.clone();
  const FlatParameters flat(module);

  CHECK(weight.is_same(module.parameter("weight")));
  CHECK(at::equal(weight, before));
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
  for (const FlatEntry& entry : flat.parameters()) {
    CHECK(entry.tensor.data_ptr<float>() == flat.values().data_ptr<float>() + entry.offset);
    CHECK(entry.offset % kFlatAlignment == 0);
  }
  {
    const torch::NoGradGuard no_grad;
    flat.values().mul_(2.0);
  }
  CHECK(at::equal(weight, before * 2.0));
}

TEST_CASE("parameters that decay come first and the order of registration stays known") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  REQUIRE(flat.parameters().size() == 3);
  CHECK(flat.parameters()[0].name == "bias");
  CHECK(flat.parameters()[1].name == "weight");
  CHECK(flat.parameters()[2].name == "token");
  CHECK(flat.parameters()[1].offset == 0);
  CHECK(flat.parameters()[2].offset == 48);  // 35 floats, up to the next multiple of 16
  CHECK(flat.parameters()[0].offset == 64);
}

TEST_CASE("small filters over many channels lie channels last, and any tensor finds its order") {
  const at::Tensor small = test::wave({4, 8, 3, 3}), large = test::wave({4, 8, 7, 7});
  test::FlatModule module({{"small", small}, {"large", large}, {"few", test::wave({4, 3, 3, 3})}});
  const FlatParameters flat(module);
  const at::Tensor weight = module.parameter("small");
  CHECK(at::equal(weight, small));
  CHECK(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK_FALSE(weight.is_contiguous());
  CHECK(module.parameter("large").is_contiguous());
  CHECK(module.parameter("few").is_contiguous());
  CHECK(weight.data_ptr<float>() == flat.values().data_ptr<float>() + flat.parameters()[0].offset);

  const FlatEntry& entry = flat.parameters()[0];
  CHECK(at::equal(entry.of(flat.values()), small));
  // The other way: part of a tensor into part of a buffer.
  const at::Tensor buffer = at::zeros_like(flat.values());
  for (const FlatSlice& slice : {FlatSlice{0, 100}, FlatSlice{100, buffer.numel()}})
    copy_into_slice(slice.of(buffer), slice, entry.offset, entry.flattened(-small));
  CHECK(at::equal(entry.of(buffer), -small));
  CHECK(buffer.count_nonzero().item<int64_t>() == small.count_nonzero().item<int64_t>());
}

TEST_CASE("floating buffers lie behind the parameters and others stay where they are") {
  test::FlatModule module({{"weight", test::wave({2, 2})}});
  module.register_buffer("running", at::full({3}, 7.0F));
  const at::Tensor count = module.register_buffer("count", at::full({}, 5, at::kLong));
  const FlatParameters flat(module);
  REQUIRE(flat.buffers().size() == 1);
  CHECK(flat.buffers()[0].offset == flat.parameter_span());
  CHECK(flat.values().numel() == flat.parameter_span() + kFlatAlignment);
  CHECK(flat.values()[flat.parameter_span()].item<float>() == 7.0F);
  CHECK(count.item<int64_t>() == 5);
}

TEST_CASE("a parameter registered twice is held once") {
  test::FlatModule module({{"weight", test::wave({2, 2})}});
  auto child = std::make_shared<torch::nn::Module>();
  child->register_parameter("same", module.parameter("weight"));
  module.register_module("child", child);
  CHECK(FlatParameters(module).parameters().size() == 1);
}

TEST_CASE("a backward pass fills the flat gradients and says which parameters it reached") {
  auto [module, flat, gradients] = Three();
  const at::Tensor g = test::wave({5, 7}, 0.9);
  module.backward({{"weight", g}});

  CHECK(gradients.received() == std::vector<bool>{false, true, false});
  CHECK(at::equal(module.parameter("weight").grad(), g));
  CHECK(module.parameter("weight").grad().data_ptr<float>() ==
        gradients.values().data_ptr<float>());
  CHECK_FALSE(module.parameter("bias").grad().defined());
}

TEST_CASE("a second backward pass adds to the first in place") {
  auto [module, flat, gradients] = Three();
  const at::Tensor g = test::wave({5, 7}, 0.9), h = test::wave({5, 7}, 0.2);
  module.backward({{"weight", g}});
  const float* place = module.parameter("weight").grad().data_ptr<float>();
  module.backward({{"weight", h}, {"bias", test::wave({3})}});
  CHECK(at::equal(gradients.values().narrow(0, 0, 35).view({5, 7}), g + h));
  CHECK(module.parameter("weight").grad().data_ptr<float>() == place);
  CHECK(gradients.received() == std::vector<bool>{true, true, false});
}

TEST_CASE("a parameter that got a gradient once and none the next time counts as zero") {
  auto [module, flat, gradients] = Three();
  module.backward({{"weight", test::wave({5, 7})}, {"bias", at::ones({3})}});
  gradients.zero_grad();
  CHECK_FALSE(module.parameter("weight").grad().defined());
  CHECK(gradients.received() == std::vector<bool>{false, false, false});
  module.backward({{"bias", at::full({3}, 2.0F)}});
  CHECK(gradients.received() == std::vector<bool>{true, false, false});
  CHECK(gradients.values().sum().item<float>() == 6.0F);
}

/// Depends on the second tensor too, but has no gradient of it.
struct OfFirstAlone : torch::autograd::Function<OfFirstAlone> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                            const at::Tensor& first,
                            const at::Tensor& second) {
    return first.sum() + second.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].expand({4}).clone(), at::Tensor()};
  }
};

TEST_CASE("a pass may reach a parameter without a gradient of it") {
  struct Two : torch::nn::Module {
    at::Tensor first = register_parameter("first", at::ones({4}));
    at::Tensor second = register_parameter("second", at::ones({4}));
  } module;
  const FlatParameters parameters(module);
  FlatGradients gradients(parameters);
  OfFirstAlone::apply(module.first, module.second).backward();
  CHECK(gradients.received() == std::vector<bool>{true, false});
  CHECK(gradients.values().sum().item<float>() == 4);
}

TEST_CASE("the account of gradients is restored without their values") {
  torch::nn::Linear linear(2, 1);
  const FlatParameters parameters(*linear);
  FlatGradients gradients(parameters);
  linear->forward(at::ones({1, 2})).sum().backward();
  const at::Tensor values = gradients.values().clone();
  gradients.restore_account({false, false});
  CHECK_FALSE(linear->weight.grad().defined());
  CHECK(gradients.values().abs().sum().item<float>() == 0);  // what nobody has received
  gradients.values().copy_(values);
  gradients.restore_account({true, true});
  CHECK(at::equal(gradients.values(), values));
  linear->forward(at::ones({1, 2})).sum().backward();  // adds
  CHECK(at::equal(gradients.values(), 2 * values));
}

TEST_CASE("who listens hears of each gradient as it arrives, in every pass") {
  auto [module, flat, gradients] = Three();
  std::vector<size_t> heard;
  gradients.set_listener([&](size_t parameter) { heard.push_back(parameter); });
  module.backward({{"weight", test::wave({5, 7})}});
  module.backward({{"bias", at::ones({3})}});
  module.backward({{"weight", test::wave({5, 7})}});
  CHECK(heard == std::vector<size_t>{1, 0, 1});
  gradients.set_listener({});
  module.backward({{"bias", at::ones({3})}});
  CHECK(heard.size() == 3);
}

TEST_CASE("a gradient that another process has counts as one, and is kept until zero_grad()") {
  auto [module, flat, gradients] = Three();
  module.backward({{"bias", at::ones({3})}});
  gradients.values().narrow(0, 0, 35).fill_(2.0F);  // the sum over the processes
  gradients.set_received({false, true, false});
  CHECK(gradients.received() == std::vector<bool>{true, true, false});
  CHECK(gradients.values().sum().item<float>() == 73.0F);
  gradients.zero_grad();
  CHECK(gradients.received() == std::vector<bool>{false, false, false});
  CHECK(gradients.values().sum().item<float>() == 0.0F);
}

TEST_CASE("the module can go on without its flat gradients") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  { const FlatGradients gradients(flat); }
  module.backward({{"bias", at::ones({3})}});
  CHECK(at::equal(module.parameter("bias").grad(), at::ones({3})));
}

TEST_CASE("a parameter of another type is refused by name") {
  test::FlatModule module({{"weight", test::wave({2, 2}).to(at::kDouble)}});
  REQUIRE_THROWS_WITH(FlatParameters(module), Catch::Contains("'weight' is Double"));
}

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
  for (const auto& make : test::rules_of_all_kinds(config)) {
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
