// SPDX-License-Identifier: MIT
// Activation checkpointing: the same gradients for less memory.
#include <ATen/autocast_mode.h>

#include "kernels/cpu_algorithms.h"
#include "model/unet/recompute.h"
#include "model/unet_support.h"
#include "support/fixture.h"
#include "support/host_counts.h"

namespace dalle2::test {
namespace {

// Counts the bytes that tensors hold on this thread.
struct MemoryCounter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0;
  int64_t peak = 0;
};

UnetConfig config_with_everything(bool recompute) {
  UnetConfig config = config_d2u1();
  config.memory_efficient = false;
  config.sparse_attn = true;
  config.checkpoint_during_training = recompute;
  return config;
}

struct Step {
  at::Tensor out;
  std::vector<at::Tensor> grads;  // of all parameters and of the image
  int64_t peak_bytes = 0;         // beyond parameters, gradients and inputs
};

/// @param levels to compute again; as the config says if not given
Step train_step(const UnetConfig& config,
                int64_t side,
                bool autocast = false,
                std::optional<int64_t> levels = std::nullopt) {
  Unet unet(config);
  if (levels) unet->recompute_levels(*levels);
  fill_parameters(*unet);
  unet->train();
  const at::Tensor x = wave({2, 3, side, side}).set_requires_grad(true);
  UnetConditions given;
  given.image_embed = wave({2, 12}, 0.9, 0.3);
  given.text_encodings = wave({2, 3, 6}, 0.5, 0.1);
  for (at::Tensor& p : unet->parameters()) p.mutable_grad() = at::zeros_like(p);
  const auto counter = std::make_shared<MemoryCounter>();
  Step step;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    if (autocast) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
    }
    step.out = unet->forward(x, torch::tensor({3, 17}), given);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    step.out.to(at::kFloat).square().sum().backward();
  }
  step.peak_bytes = counter->peak;
  for (const at::Tensor& p : unet->parameters()) step.grads.push_back(p.grad());
  step.grads.push_back(x.grad());
  return step;
}

TEST_CASE("recomputed activations give the same output and gradients") {
  for (const bool autocast : {false, true}) {
    INFO("autocast " << autocast);
    const Step kept = train_step(config_with_everything(false), 16, autocast);
    const Step recomputed = train_step(config_with_everything(true), 16, autocast);
    CHECK(at::equal(kept.out, recomputed.out));
    REQUIRE(kept.grads.size() == recomputed.grads.size());
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < kept.grads.size(); ++i) {
      difference += (recomputed.grads[i] - kept.grads[i]).square().sum().item<double>();
      size += kept.grads[i].square().sum().item<double>();
    }
    // Gradients of tensors that many blocks share are summed in another order; under autocast each
    // partial sum is rounded to the 8 bits of bfloat16.
    CHECK(std::sqrt(difference / size) <= (autocast ? 1e-2 : 1e-5));
  }
}

TEST_CASE("time projections of all blocks in one product are the plain form") {
  const UnetConfig config = config_with_everything(false);
  Step joined, plain;
  HostCounts of_joined =
      host_counts_of([&] { joined = train_step(config, 16, /*autocast=*/false); });
  const PlainAlgorithms by_block;
  HostCounts of_plain = host_counts_of([&] { plain = train_step(config, 16, /*autocast=*/false); });
  CHECK(of_joined.by_name["aten::split_with_sizes"] == 1);
  CHECK(of_plain.by_name["aten::split_with_sizes"] == 0);
  CHECK(at::allclose(joined.out, plain.out, 1e-4, 1e-5));
  for (size_t i = 0; i < plain.grads.size(); ++i) {
    INFO("gradient " << i);  // of float64: joined is off by up to 6.4e-4, plain by up to 4.8e-4
    const double largest = plain.grads[i].abs().max().item<double>();
    CHECK((joined.grads[i] - plain.grads[i]).abs().max().item<double>() <= 2e-3 * largest);
  }
}

TEST_CASE("each level that is computed again takes less memory") {
  const UnetConfig config = config_with_everything(false);
  const int64_t most = Unet(config)->recomputable_levels();
  REQUIRE(most >= 3);
  std::vector<int64_t> bytes;
  const Step kept = train_step(config, 64);
  for (int64_t levels = 0; levels <= most; ++levels) {
    const Step step = train_step(config, 64, false, levels);
    CHECK(at::equal(step.out, kept.out));
    bytes.push_back(step.peak_bytes);
  }
  CHECK(bytes.front() == kept.peak_bytes);
  CHECK(bytes.back() == train_step(config_with_everything(true), 64).peak_bytes);
  CHECK(bytes.back() < kept.peak_bytes / 2);
  for (size_t i = 1; i < bytes.size(); ++i) {
    CAPTURE(i, bytes[i - 1], bytes[i]);
    CHECK(bytes[i] < bytes[i - 1]);
  }
  CHECK_THROWS(train_step(config, 64, false, most + 1));
}

TEST_CASE("a unet that only evaluates keeps no activations to recompute") {
  Unet unet(config_with_everything(true));
  fill_parameters(*unet);
  unet->eval();
  UnetConditions given;
  given.image_embed = wave({1, 12});
  const at::Tensor out = unet->forward(wave({1, 3, 16, 16}), torch::tensor({3}), given);
  out.sum().backward();
  CHECK(unet->named_parameters()["mid_block1.block1.project.weight"].grad().defined());
}

TEST_CASE("inputs and parameters without a gradient stay without one") {
  const at::Tensor x = wave({4});
  const at::Tensor weight = wave({4}, 0.9).set_requires_grad(true);
  const at::Tensor frozen = wave({4}, 0.3);
  const auto product = [&](const std::vector<at::Tensor>& in) { return in[0] * weight * frozen; };
  recompute_in_backward(product, {x}, {weight, frozen}).sum().backward();
  CHECK(at::equal(weight.grad(), x * frozen));
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(frozen.grad().defined());
}

}  // namespace
}  // namespace dalle2::test
