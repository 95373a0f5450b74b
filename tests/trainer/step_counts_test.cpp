// SPDX-License-Identifier: MIT
// What a step of each kind asks of LibTorch on the CPU, compared with step_counts.json without a clock. What a
// convolution is made of does not count.
// DALLE2_UPDATE_GENERATED=1 writes the table anew.
#include <thread>

#include "kernels/cpu_algorithms.h"
#include "model/vae_support.h"
#include "optim/precision.h"
#include "support/compute_threads.h"
#include "support/host_counts.h"
#include "support/tiny_clip.h"
#include "trainer/clip_trainer.h"
#include "trainer/prior_trainer_fixture.h"
#include "trainer/step_times.h"
#include "trainer/vae_trainer.h"

namespace dalle2::test {
namespace {

using Json = nlohmann::ordered_json;
using Work = std::function<void()>;

/// In bf16, a few operations and allocations depend on the processor's instructions.
constexpr double kSlackOfBf16 = 0.03;

struct KindOfStep {
  std::string name;
  std::function<Work(MixedPrecision)> make;  ///< whose work is a step with its update
};

Work decoder_step(int64_t unet, MixedPrecision precision) {
  DecoderTrainConfig config = cascade().train_config();
  config.mixed_precision = precision;
  const std::shared_ptr<DecoderTrainer> trainer = cascade().trainer(config);
  return [=, inputs = drawn_inputs(2, 1)] {
    trainer->step(inputs, unet, make_generator({0, "train", 0, 1}, at::kCPU));
    trainer->update(unet);
  };
}

Work prior_step(MixedPrecision precision) {
  const PriorTrainerFixture fixture("adamw");
  PriorTrainConfig config = fixture.train_config();
  config.mixed_precision = precision;
  const std::shared_ptr<PriorTrainer> trainer = fixture.trainer(config);
  return [=, inputs = drawn_prior_inputs(3, 1)] {
    trainer->step(inputs, make_generator({0, "train", 0, 1}, at::kCPU));
    trainer->update();
  };
}

/// Autoencoder and discriminator, with the gradient penalty.
Work vae_step(MixedPrecision precision) {
  VaeTrainConfig config;
  config.num_train_steps = 3;
  config.mixed_precision = precision;
  torch::manual_seed(3);
  const auto features = [](const at::Tensor& images) { return images.flatten(1); };
  const auto trainer =
      std::make_shared<VaeTrainer>(VqganVae(small_vae()), config, features, at::kCPU);
  const at::Tensor images = at::rand({4, 3, 8, 8}, make_generator({0, "pictures"}, at::kCPU));
  return [=] {
    const at::Generator random = make_generator({0, "train", 0, 1}, at::kCPU);
    const auto pictures = [&] { return images; };
    trainer->step({.autoencoder = {{pictures, random}},
                   .discriminator = {{pictures, random}},
                   .codes = random,
                   .discriminator_codes = random,
                   .with_penalty = true});
  };
}

Work clip_step(MixedPrecision precision) {
  ClipTrainConfig config;
  config.mixed_precision = precision;
  torch::manual_seed(1);
  const auto trainer =
      std::make_shared<ClipTrainer>(std::make_shared<ClipImpl>(tiny_clip()), config, at::kCPU);
  at::Tensor tokens = at::zeros({4, 6}, at::kLong);
  tokens.select(1, 0).fill_(518);
  tokens.select(1, 5).fill_(519);
  const ClipInputs inputs{at::rand({4, 3, 8, 8}), tokens};
  return [=] {
    trainer->step({inputs});
    trainer->update();
  };
}

/// Three steps of guided sampling, of what a step of training has in one.
Work decoder_sampling() {
  const std::shared_ptr<DecoderTrainer> trainer = cascade().trainer();
  return [=] {
    DecoderSampleOptions options;
    options.image_embeds = drawn_inputs(2, 90).image_embeds;
    options.sample_timesteps = 3;
    options.cond_scale = 3.0;
    options.generator = make_generator({0, "sample"}, at::kCPU);
    trainer->sample(options);
  };
}

Work prior_sampling() {
  const PriorTrainerFixture fixture("adamw");
  const std::shared_ptr<PriorTrainer> trainer = fixture.trainer();
  return [=] {
    PriorSampleOptions options;
    options.text = drawn_prior_inputs(2, 90).text;
    options.timesteps = 4;  // of which the sampler makes three
    options.cond_scale = 3.0;
    options.generator = make_generator({0, "sample"}, at::kCPU);
    trainer->p_sample_loop(options);
  };
}

std::vector<KindOfStep> kinds_of_steps() {
  return {{"decoder, unet 1", [](MixedPrecision p) { return decoder_step(1, p); }},
          {"decoder, unet 2", [](MixedPrecision p) { return decoder_step(2, p); }},
          {"prior", prior_step},
          {"VAE", vae_step},
          {"CLIP", clip_step},
          {"sampling of a decoder", [](MixedPrecision) { return decoder_sampling(); }},
          {"sampling of a prior", [](MixedPrecision) { return prior_sampling(); }}};
}

Json counted(const Work& work) {
  work();  // makes what is made once
  const HostCounts counts = host_counts_of(work);
  return {{"operations", counts.own_operations}, {"allocations", counts.own_allocations}};
}

/// The table as it is now.
Json counted_steps() {
  Json table;
  for (const KindOfStep& kind : kinds_of_steps()) {
    table[kind.name] = counted(kind.make(MixedPrecision::no));
    // The layout of a convolution in bf16 depends on the processor, and so do the operations on a unet's maps.
    if (kind.name.starts_with("sampling") || kind.name.starts_with("decoder")) continue;
    table[kind.name + ", bf16"] = counted(kind.make(MixedPrecision::bf16));
  }
  return table;
}

TEST_CASE("a step of each kind takes the operations and allocations that the table says") {
  const test::ComputeThreads one(1);  // several need memory of their own
  const PlainAlgorithms plain;        // our own algorithms depend on the processor
  const std::string path = std::string(DALLE2_SOURCE_DIR) + "/tests/trainer/step_counts.json";
  const Json found = counted_steps();
  if (std::getenv("DALLE2_UPDATE_GENERATED") != nullptr)
    std::ofstream(path) << found.dump(2) << "\n";
  const Json expected = Json::parse(std::ifstream(path));
  for (const auto& [kind, counts] : found.items()) {
    INFO(kind << ": if a change of its cost is wanted, write tests/trainer/step_counts.json anew: "
                 "DALLE2_UPDATE_GENERATED=1 build/bin/test_trainer \"a step of each kind*\"");
    REQUIRE(expected.contains(kind));
    for (const std::string what : {"operations", "allocations"}) {
      const auto got = counts.at(what).get<int64_t>();
      const auto wanted = expected.at(kind).at(what).get<int64_t>();
      INFO(what << ": expected " << wanted << ", got " << got);
      // Fewer are a fault, too: the table would let them come back.
      const double slack = kind.ends_with("bf16") ? kSlackOfBf16 : 0;
      CHECK(std::abs(static_cast<double>(got - wanted)) <= slack * static_cast<double>(wanted));
    }
  }
  CHECK(expected.size() == found.size());
}

void wait_milliseconds(int count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(count));
}

double seconds_of(const std::vector<std::pair<std::string, double>>& averages,
                  const std::string& phase) {
  for (const auto& [name, seconds] : averages) {
    if (name == phase) return seconds;
  }
  throw std::logic_error("no phase " + phase);
}

TEST_CASE("the time of each phase is averaged over the steps, and taken once") {
  StepTimes times(at::kCPU);
  for (int step = 0; step < 2; ++step) {
    timed(&times, StepPhase::kForward, [] { wait_milliseconds(20); });
    times.count_step();
  }
  CHECK(timed(&times, StepPhase::kSave, [] {
          wait_milliseconds(20);
          return 7;
        }) == 7);
  const auto averages = times.take();
  REQUIRE(averages.size() == kPhaseNames.size());
  CHECK(seconds_of(averages, "forward") >= 0.020);
  CHECK(seconds_of(averages, "save") >= 0.010);  // once in two steps
  CHECK(seconds_of(averages, "forward") > seconds_of(averages, "save"));
  CHECK(seconds_of(averages, "data") == 0);
  CHECK(times.take().empty());
}

TEST_CASE("work that throws is timed too, and timing is optional") {
  StepTimes times(at::kCPU);
  CHECK_THROWS_AS(timed(&times, StepPhase::kData, [] { throw std::runtime_error("no data"); }),
                  std::runtime_error);
  times.count_step();
  CHECK(seconds_of(times.take(), "data") > 0);
  CHECK(timed(nullptr, StepPhase::kData, [] { return 3; }) == 3);
}

TEST_CASE("a trainer tells the time of its forward, backward and optimizer while it is asked to") {
  DecoderTrainConfig config = test::cascade().train_config();
  config.max_batch_size = 2;
  const auto trainer = test::cascade().trainer(config);
  StepTimes times(at::kCPU);
  const auto train = [&] {
    trainer->step(test::drawn_inputs(4, 1), 1, make_generator({0, "train", 0, 0}, at::kCPU));
    trainer->update(1);
    times.count_step();
  };
  trainer->set_step_times(&times);
  train();
  const auto averages = times.take();
  for (const char* phase : {"forward", "backward", "optimizer"})
    CHECK(seconds_of(averages, phase) > 0);
  for (const char* phase : {"data", "copy", "save"}) CHECK(seconds_of(averages, phase) == 0);
  trainer->set_step_times(nullptr);
  train();
  CHECK(seconds_of(times.take(), "forward") == 0);
}

}  // namespace
}  // namespace dalle2::test
