// SPDX-License-Identifier: MIT
#include "optim/precision.h"

#include <ATen/Context.h>

#include "flat_module.h"
#include "kernels/cpu_algorithms.h"
#include "optim/flat_parameters.h"
#include "optim/optimizer.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

using test::kTrajectoryTolerance;

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
  CHECK(chosen(MixedPrecision::bf16, false, true, false).reason == "/train/mixed_precision");
  CHECK(chosen(MixedPrecision::bf16, false, false, true).reason == "/train/mixed_precision");
  CHECK_THAT(chosen(MixedPrecision::bf16, false, false, false).reason,
             Catch::Contains("\"no\" is several times"));
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

at::Tensor flag(bool value) {
  return at::full({}, value ? 1.0 : 0.0, at::kFloat);
}

TEST_CASE("scale, growth and skipped updates follow torch.amp.GradScaler", "[parity]") {
  const test::Fixture fixture = test::load_fixture("precision/scaler");
  const nlohmann::json& json = fixture.json;
  StateDict initial;
  for (const auto& name : json.at("names"))
    initial.emplace_back(name, fixture.tensor("initial." + name.get<std::string>()));
  test::FlatModule module(initial);
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  OptimizerOptions options;
  options.group_wd_params = false;
  Optimizer optimizer(flat, options);
  GradScalerOptions scaling;
  scaling.init_scale = json.at("init_scale").get<double>();
  scaling.growth_interval = json.at("growth_interval").get<int64_t>();
  GradScaler scaler(at::kCPU, scaling);

  int64_t skipped = 0;
  for (size_t step = 0; step < json.at("log").size(); ++step) {
    INFO("step " << step);
    const nlohmann::json& expected = json.at("log")[step];
    gradients.zero_grad();
    module.backward(fixture.below(fmt::format("grad.{}.", step)));
    const at::Tensor norm = grad_norm(gradients.values()) / scaler.scale();
    const at::Tensor found_inf = norm.isfinite().logical_not().to(at::kFloat);
    REQUIRE((found_inf.item<float>() == 1.0F) == expected.at("found_inf").get<bool>());
    optimizer.step(gradients,
                   json.at("lr").get<double>(),
                   clip_divisor(norm, json.at("max_norm").get<double>()) * scaler.scale(),
                   found_inf);
    if (expected.at("found_inf").get<bool>()) {
      ++skipped;
    } else {
      optimizer.count_update();
    }
    scaler.update(found_inf);
    CHECK(scaler.current_scale() == expected.at("scale").get<double>());
    CHECK(scaler.growth_tracker() == expected.at("tracker").get<int64_t>());
    for (size_t i = 0; i < flat.parameters().size(); ++i) {
      const std::string& name = flat.parameters()[i].name;
      const std::optional<ParameterState> state = optimizer.state(i);
      CHECK((state ? state->step : 0) == expected.at("steps").at(name).get<int64_t>());
      test::expect_close(flat.parameters()[i].tensor,
                         fixture.tensor(fmt::format("after.{}.{}", step, name)),
                         kTrajectoryTolerance,
                         name);
    }
  }
  CHECK(skipped > 3);
}

TEST_CASE("a new scaler has torch's constants: 65536, doubled each 2000 updates") {
  GradScaler scaler(at::kCPU);
  CHECK(scaler.current_scale() == 65536.0);
  for (int i = 0; i < 1999; ++i) scaler.update(flag(false));
  CHECK(scaler.current_scale() == 65536.0);
  CHECK(scaler.growth_tracker() == 1999);
  scaler.update(flag(false));
  CHECK(scaler.current_scale() == 131072.0);
  CHECK(scaler.growth_tracker() == 0);
  scaler.update(flag(false));
  scaler.update(flag(true));
  CHECK(scaler.current_scale() == 65536.0);
  CHECK(scaler.growth_tracker() == 0);
}

TEST_CASE("a scale does not grow beyond the finite numbers") {
  GradScalerOptions options;
  options.init_scale = 0x1p127;
  options.growth_interval = 1;
  GradScaler scaler(at::kCPU, options);
  scaler.update(flag(false));
  CHECK(scaler.current_scale() == 0x1p127);
}

TEST_CASE("a scaler goes on from a state") {
  GradScaler scaler(at::kCPU), other(at::kCPU);
  scaler.update(flag(true));
  scaler.update(flag(false));
  other.set_state(scaler.current_scale(), scaler.growth_tracker());
  for (GradScaler* each : {&scaler, &other}) each->update(flag(false));
  CHECK(other.current_scale() == 32768.0);
  CHECK(other.growth_tracker() == 2);
  CHECK(scaler.growth_tracker() == 2);
}

/// Two linear weights, of which the second is used twice, and a convolution with channels-last filters.
struct HalvedLayersImpl : torch::nn::Module {
  HalvedLayersImpl() {
    torch::manual_seed(5);
    first = register_parameter("first", torch::randn({24, 16}) * 0.2);
    bias = register_parameter("bias", torch::randn({24}));
    second = register_parameter("second", torch::randn({24, 24}) * 0.2);
    filters = register_parameter("filters", torch::randn({8, 8, 3, 3}) * 0.2);
    frozen = register_parameter("frozen", torch::randn({24, 24}) * 0.2, /*requires_grad=*/false);
  }
  /// @param x [B, 16] @param map [B, 8, 5, 5]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& map) const {
    at::Tensor h = at::linear(x, in_half(first), in_half(bias));
    h = at::linear(at::silu(at::linear(h, in_half(second))), in_half(second));
    h = at::linear(h, in_half(frozen));
    const at::Tensor y = at::conv2d(map, in_half(filters), {}, 1, 1);
    return h.to(at::kFloat).square().mean() + y.to(at::kFloat).square().mean();
  }
  at::Tensor first, bias, second, filters, frozen;
};
TORCH_MODULE(HalvedLayers);

struct Training {
  HalvedLayers network;
  FlatParameters parameters{*network};
  FlatGradients gradients{parameters};
  HalfWeights halves{parameters, at::kBFloat16};
  at::Tensor x = torch::ones({6, 16}) * torch::arange(6).unsqueeze(1) * 0.3;
  at::Tensor map = torch::arange(6 * 8 * 25).to(at::kFloat).sin().view({6, 8, 5, 5});

  at::Tensor loss(const std::function<at::Tensor(const at::Tensor&)>& more = nullptr) {
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    const at::Tensor value = network->forward(x, map);
    return more ? more(value) : value;
  }
  bool has_fresh_halves() {
    const at::Tensor weights = parameters.values().narrow(0, 0, parameters.parameter_span());
    return at::equal(halves.values(), weights.to(at::kBFloat16));
  }
  at::Tensor loss_with_halves(const std::function<at::Tensor(const at::Tensor&)>& more = nullptr) {
    halves.refresh();
    const HalfWeights::Pass pass(halves, &gradients);
    return loss(more);
  }
};

TEST_CASE("weights kept in half precision give the loss and the gradients of autocast") {
  Training cast, kept;
  for (int pass = 0; pass < 2; ++pass) {  // the second adds to the gradients of the first
    const at::Tensor wanted = cast.loss(), found = kept.loss_with_halves();
    CHECK(found.item<float>() == wanted.item<float>());
    wanted.backward();
    found.backward();
    CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
    CHECK(kept.gradients.received() == cast.gradients.received());
    for (const FlatEntry& entry : kept.parameters.parameters()) {
      const at::Tensor& grad = entry.tensor.grad();
      REQUIRE(grad.defined() == entry.tensor.requires_grad());
      if (grad.defined()) CHECK(at::equal(grad, entry.of(kept.gradients.values())));
    }
  }
  CHECK(kept.gradients.values().abs().sum().item<float>() > 0);
  kept.gradients.zero_grad();
  cast.gradients.zero_grad();
  kept.loss_with_halves().backward();
  cast.loss().backward();
  CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
}

TEST_CASE("a gradient that goes into the flat buffer at once is not copied") {
  Training training;
  std::vector<int> counts(training.parameters.parameters().size(), 0);
  training.gradients.set_listener([&](size_t parameter) { ++counts[parameter]; });
  training.loss_with_halves().backward();
  CHECK(counts == std::vector<int>{1, 1, 1, 1, 0});
  CHECK_FALSE(training.gradients.place_of(0).defined());  // taken
  training.gradients.zero_grad();
  const at::Tensor place = training.gradients.place_of(0);
  REQUIRE(place.defined());
  CHECK(place.data_ptr() == training.gradients.values().data_ptr());
  CHECK_FALSE(training.gradients.place_of(0).defined());  // somebody has it
}

TEST_CASE("a weight that is also used in float32 gets both gradients") {
  const auto with_penalty = [](HalvedLayers& network) {
    return
        [&network](const at::Tensor& loss) { return loss + 0.1 * network->first.square().sum(); };
  };
  Training cast, kept;
  cast.loss(with_penalty(cast.network)).backward();
  kept.loss_with_halves(with_penalty(kept.network)).backward();
  CHECK(at::equal(kept.gradients.values(), cast.gradients.values()));
}

TEST_CASE("copies follow the weights, whichever way these change") {
  Training training;
  const torch::NoGradGuard no_grad;
  const auto expect_fresh = [&] {
    training.halves.refresh();
    CHECK(training.has_fresh_halves());
  };
  expect_fresh();
  training.network->second.mul_(1.5);  // through the parameter
  expect_fresh();
  training.parameters.values().add_(0.25);  // through the buffer
  expect_fresh();
  training.parameters.parameters()[3].of(training.parameters.values()).fill_(2);  // through a view
  expect_fresh();
}

TEST_CASE("copies follow an update, by LibTorch's operations and by the CPU's own") {
  for (const bool plain : {true, false}) {
    std::optional<PlainAlgorithms> like_a_gpu;
    if (plain) like_a_gpu.emplace();
    Training training;
    Optimizer optimizer(training.parameters, {});
    for (int step = 0; step < 3; ++step) {
      training.loss_with_halves().backward();
      const at::Tensor before = training.halves.values().clone();
      optimizer.step(training.gradients, 1e-1, torch::ones({}), torch::zeros({}));
      optimizer.count_update();
      training.gradients.zero_grad();
      CHECK_FALSE(training.halves.is_fresh());
      training.halves.refresh();
      CHECK_FALSE(at::equal(training.halves.values(), before));
      CHECK(training.has_fresh_halves());
    }
  }
}

TEST_CASE("an update writes copies and average; a skipped one writes neither") {
  Training training;
  Optimizer optimizer(training.parameters, {});
  const int64_t span = training.parameters.parameter_span();
  const at::Tensor average = training.parameters.values().narrow(0, 0, span).clone();
  const at::Tensor wanted = average.clone();
  for (const bool skipped : {false, true, false}) {
    training.loss_with_halves().backward();
    const at::Tensor before = training.parameters.values().clone();
    const at::Tensor halves_before = training.halves.values().clone();
    optimizer.step(
        training.gradients,
        1e-2,
        torch::ones({}),
        torch::full({}, skipped ? 1.0 : 0.0),
        {.average = average, .average_weight = 0.25, .halves = training.halves.values()});
    if (!skipped) optimizer.count_update();
    training.gradients.zero_grad();
    const at::Tensor weights = training.parameters.values().narrow(0, 0, span);
    CHECK(at::equal(training.parameters.values(), before) == skipped);
    CHECK(at::equal(training.halves.values(), halves_before) == skipped);
    CHECK(training.has_fresh_halves());
    if (!skipped) wanted.lerp_(weights, 0.25);  // of what has no gradient, too
    CHECK(at::allclose(average, wanted, 1e-6, 1e-7));
  }
}

TEST_CASE("passes without gradients and other threads of work keep what they had") {
  Training training;
  training.halves.refresh();
  const HalfWeights::Pass pass(training.halves, &training.gradients);
  CHECK(in_half(training.network->first).is_same(training.network->first));  // no autocast
  const Autocast autocast(at::kCPU, MixedPrecision::bf16);
  const at::Tensor half = in_half(training.network->first);
  CHECK(half.scalar_type() == at::kBFloat16);
  CHECK(half.requires_grad());
  CHECK(in_half(training.network->first).is_same(half));
  CHECK_FALSE(in_half(training.network->frozen).requires_grad());
  const at::Tensor other = torch::ones({2, 2});
  CHECK(in_half(other).is_same(other));
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(in_half(training.network->first).requires_grad());
}

TEST_CASE("second derivatives go through weights in half precision") {
  Training training;
  training.halves.refresh();
  at::Tensor x = training.x.clone().set_requires_grad(true);
  at::Tensor penalty;
  {
    const HalfWeights::Pass pass(training.halves, &training.gradients);
    const Autocast autocast(at::kCPU, MixedPrecision::bf16);
    const at::Tensor loss = training.network->forward(x, training.map);
    penalty = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0].square().sum();
  }
  penalty.backward();
  CHECK(training.network->first.grad().abs().sum().item<float>() > 0);
}

}  // namespace
}  // namespace dalle2
