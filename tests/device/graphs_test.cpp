// SPDX-License-Identifier: MIT
// Passes that are recorded and replayed: the same bits as without, a few launches, and ways out.
#include "dist/process_group.h"
#include "kernels/device_graph.h"
#include "optim/pass_graphs.h"
#include "support/captured_log.h"
#include "support/fake_device.h"
#include "trainer/prior_trainer_fixture.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

/// Both trainers take the same steps, and have the same bits after each.
template <class Trainer, class Step>
void expect_same_steps(Trainer& plain, Trainer& by_graph, int64_t steps, const Step& step) {
  for (int64_t number = 0; number < steps; ++number) {
    step(plain, number);
    step(by_graph, number);
    CAPTURE(number);
    const bool has_same_bits = bits_of(by_graph) == bits_of(plain);
    REQUIRE(has_same_bits);
  }
}

void decoder_step(DecoderTrainer& trainer, int64_t number, int64_t batch = 2) {
  for (const int64_t unet : {1, 2}) {
    trainer.step(
        drawn_inputs(batch, number), unet, make_generator({0, "train", 0, number}, fake_device()));
    trainer.update(unet);
  }
}

constexpr const char* kInUse = "one CUDA graph each from now on";

/// Expects equal results from both trainers, this number of graphs, and no warning.
template <class Trainer, class Step>
void expect_graphs(
    Trainer& plain, Trainer& by_graph, int64_t steps, long graphs, const Step& step) {
  CapturedLog log;
  expect_same_steps(plain, by_graph, steps, step);
  INFO(log.text());
  CHECK(log.count(kInUse) == graphs);
  CHECK(log.count(LogLevel::kWarning) == 0);
}

TEST_CASE("a decoder's passes by graphs have the bits of passes without") {
  DecoderTrainConfig config = cascade().train_config();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16, MixedPrecision::fp16);
  const auto plain = cascade().trainer(config, fake_device());
  config.cuda_graph = true;
  CapturedLog log;
  const auto by_graph = cascade().trainer(config, fake_device());
  expect_same_steps(*plain, *by_graph, 8, [](DecoderTrainer& trainer, int64_t number) {
    decoder_step(trainer, number);
  });
  INFO(log.text());
  CHECK(log.count("unet 1: passes of 2 samples: one CUDA graph each from now on") == 1);
  CHECK(log.count("unet 2: passes of 2 samples: one CUDA graph each from now on") == 1);
  CHECK(log.count(LogLevel::kWarning) == 0);
  // Inputs, draws and the update remain.
  const DecoderInputs inputs = on_device(drawn_inputs(2, 9), fake_device());
  const auto counts = counts_of([&] {
    by_graph->step(inputs, 1, make_generator({0, "train", 0, 9}, fake_device()));
    by_graph->update(1);
  });
  INFO(counts.text());
  CHECK(counts.by_name.at("operation graph") == 1);
  CHECK(counts.operations <= 40);
  CHECK(counts.stalls() == 0);
  CHECK(counts.unsafe_frees == 0);
}

TEST_CASE("steps by graphs go on through samples, evaluations and another state") {
  DecoderTrainConfig config = cascade().train_config();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::fp16);
  const auto plain = cascade().trainer(config, fake_device());
  config.cuda_graph = true;
  const auto by_graph = cascade().trainer(config, fake_device()),
             other = cascade().trainer(config, fake_device());
  const auto step = [](DecoderTrainer& trainer, int64_t number) { decoder_step(trainer, number); };
  expect_same_steps(*plain, *by_graph, 6, step);
  for (DecoderTrainer* const trainer : {plain.get(), by_graph.get()}) {
    trainer->evaluate(drawn_inputs(3, 80), 2, make_generator({0, "validate"}, at::kCPU));
    DecoderSampleOptions options;
    options.image_embeds = drawn_inputs(2, 90).image_embeds;
    options.sample_timesteps = 2;
    options.generator = make_generator({0, "sample"}, fake_device());
    trainer->sample(options);
  }
  expect_same_steps(*plain, *by_graph, 2, step);
  train(*other, 0, 3);
  const Value state = other->state();
  plain->load_state(state);
  by_graph->load_state(state);
  CapturedLog log;
  expect_same_steps(*plain, *by_graph, 7, step);
  CHECK(log.count(kInUse) == 2);  // those of before are forgotten
}

TEST_CASE("each shape, chunk and variant of a pass has its graph") {
  json config = cascade().data().json.at("config");
  for (json& unet : config["decoder"]["unets"]) {
    unet["self_cond"] = unet["sparse_attn"] = unet["cross_embed_downsample"] = true;
    unet["self_attn"] = {false, true};
    unet["dim"] = 8;
    unet["dim_mults"] = {1, 2};
  }
  config["decoder"]["random_crop_sizes"] = {nullptr, 8};
  config["decoder"]["use_noise_for_lowres_cond"] = true;
  LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  loaded.config.train.max_batch_size = 2;
  const auto make = [&](bool cuda_graph) {
    torch::manual_seed(1);
    DecoderTrainConfig train = loaded.config.train;
    train.cuda_graph = cuda_graph;
    return std::make_unique<DecoderTrainer>(Decoder(loaded.plan), train, fake_device());
  };
  const auto plain = make(false), by_graph = make(true);
  CapturedLog log;
  expect_same_steps(*plain, *by_graph, 24, [](DecoderTrainer& trainer, int64_t number) {
    decoder_step(trainer, number, /*batch=*/5);  // chunks of 2, 2 and 1
  });
  INFO(log.text());
  CHECK(log.count(LogLevel::kWarning) == 0);
  for (const std::string unet : {"unet 1: ", "unet 2: "}) {
    for (const std::string variant : {"", ", conditioned on the network's own estimate"}) {
      CHECK(log.count(unet + "passes of 2 samples" + variant + ": " + kInUse) == 1);
      CHECK(log.count(unet + "passes of 2 samples" + variant +
                      ", added to earlier gradients: " + kInUse) == 1);
      CHECK(log.count(unet + "passes of 1 samples" + variant +
                      ", added to earlier gradients: " + kInUse) == 1);
    }
  }
}

TEST_CASE("a graph reads the seed of dropout masks anew") {
  DecoderTrainConfig config = cascade().train_config();
  config.lora.rank = 2;
  config.lora.dropout = 0.5;
  config.lora.train_bias = true;
  config.frozen_dtype = FrozenDtype::bf16;
  config.max_batch_size = GENERATE(std::optional<int64_t>(), std::optional<int64_t>(1));
  const auto make = [&](bool cuda_graph) {
    torch::manual_seed(3);  // of adapters
    config.cuda_graph = cuda_graph;
    return cascade().trainer(config, fake_device());
  };
  const auto plain = make(false), by_graph = make(true);
  const long graphs = config.max_batch_size ? 4 : 2;  // the second chunk adds
  expect_graphs(*plain, *by_graph, 8, graphs, [](DecoderTrainer& trainer, int64_t number) {
    decoder_step(trainer, number);
  });
}

TEST_CASE("a prior's passes by graphs have the bits of passes without") {
  const PriorTrainerFixture fixture(GENERATE("adamw", "adam"));
  PriorTrainConfig config = fixture.train_config();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16);
  json prior = fixture.data().json.at("prior");
  prior["net"]["attn_dropout"] = 0.2;
  prior["net"]["ff_dropout"] = 0.3;
  const auto make = [&](bool cuda_graph) {
    config.cuda_graph = cuda_graph;
    return std::make_unique<PriorTrainer>(
        prior_of(prior, config.loss_plan()), config, fake_device());
  };
  const auto plain = make(false), by_graph = make(true);
  const long graphs = prior["net"].value("self_cond", false) ? 2 : 1;
  expect_graphs(*plain, *by_graph, 12, graphs, [](PriorTrainer& trainer, int64_t number) {
    trainer.step(drawn_prior_inputs(3, number),
                 make_generator({0, "train", 0, number}, fake_device()));
    trainer.update();
  });
}

TEST_CASE("a decoder's options are recorded with it") {
  json config = cascade().data().json.at("config");
  for (json& unet : config["decoder"]["unets"]) unet["checkpoint_during_training"] = true;
  config["decoder"]["learned_variance"] = true;
  const LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  const auto make = [&](bool cuda_graph) {
    torch::manual_seed(1);
    DecoderTrainConfig train = loaded.config.train;
    train.cuda_graph = cuda_graph;
    train.update_model_with_ema_every = 3;
    return std::make_unique<DecoderTrainer>(Decoder(loaded.plan), train, fake_device());
  };
  const auto plain = make(false), by_graph = make(true);
  expect_graphs(*plain, *by_graph, 8, 2, [](DecoderTrainer& trainer, int64_t number) {
    for (const int64_t batch : {0, 1}) {  // two of an update
      trainer.step(drawn_inputs(2, 2 * number + batch),
                   1,
                   make_generator({0, "train", batch, number}, fake_device()),
                   {.weight = 0.5, .is_last = batch == 1});
    }
    trainer.update(1);
  });
}

TEST_CASE("an update that is skipped is skipped by graphs too") {
  DecoderTrainConfig config = cascade().train_config();
  const auto plain = cascade().trainer(config, fake_device());
  config.cuda_graph = true;
  const auto by_graph = cascade().trainer(config, fake_device());
  const int64_t bad = GENERATE(3, 4, 6);  // as it is recorded, checked and used
  CapturedLog log;
  expect_same_steps(*plain, *by_graph, 9, [&](DecoderTrainer& trainer, int64_t number) {
    DecoderInputs inputs = drawn_inputs(2, number);
    if (number == bad) inputs.images[0][0][0][0] = std::nan("");
    trainer.step(inputs, 1, make_generator({0, "train", 0, number}, fake_device()));
    trainer.update(1);
  });
  INFO(log.text());
  CHECK(by_graph->skipped_updates(1).total == 1);
  CHECK(log.count(kInUse) == 1);
}

// ---- What cannot be recorded

struct Part {
  explicit Part(const at::Device& device)
      : module(std::make_shared<torch::nn::LinearImpl>(3, 1)),
        parameters(at_home(*module, device)),
        gradients(parameters),
        mean(at::zeros({}, at::device(device))),
        graphs("toy", gradients, {mean}, device) {}
  static torch::nn::Module& at_home(torch::nn::Module& module, const at::Device& device) {
    module.to(device);
    return module;
  }

  std::shared_ptr<torch::nn::LinearImpl> module;
  FlatParameters parameters;
  FlatGradients gradients;
  at::Tensor mean;  // a buffer
  PassGraphs graphs;
};

at::Tensor backward_of(const at::Tensor& loss) {
  loss.backward();
  return loss.detach();
}

/// A pass of a part by its graph, or towards one. @param work the module's sum, if it is not given
at::Tensor pass_of(Part& part, const at::Tensor& input, PassGraphs::Work work = {}) {
  if (!work) {
    work = [&](const Tensors& inputs, bool) {
      return backward_of(part.module->forward(inputs[0]).sum());
    };
  }
  const RecordablePass pass{{input.to(fake_device())}};
  part.gradients.zero_grad();
  const at::Tensor loss = part.graphs.replay(pass, 1.0);
  return loss.defined() ? loss : part.graphs.run(pass, 1.0, work);
}

/// Makes passes of a part; each has the gradient that the work without a graph gives.
void expect_passes(const PassGraphs::Work& work, Part& part, int64_t passes) {
  for (int64_t number = 0; number < passes; ++number) {
    const at::Tensor input = at::full({2, 3}, static_cast<double>(number + 1)).to(fake_device());
    const at::Tensor loss = pass_of(part, input, work);
    const at::Tensor found = part.gradients.values().clone();
    part.gradients.zero_grad();
    const at::Tensor expected = work({input}, false);
    CAPTURE(number);
    CHECK(at::equal(found.cpu(), part.gradients.values().cpu()));
    CHECK(loss.item<float>() == expected.item<float>());
  }
}

TEST_CASE("a loss stays what it was when its graph runs again") {
  Part part(fake_device());
  Tensors losses;
  for (int64_t number = 0; number < 8; ++number)
    losses.push_back(pass_of(part, at::full({2, 3}, static_cast<double>(number))));
  for (int64_t number = 0; number < 8; ++number) {
    const at::Tensor input = at::full({2, 3}, static_cast<double>(number)).to(fake_device());
    CHECK(losses[static_cast<size_t>(number)].item<float>() ==
          part.module->forward(input).sum().item<float>());
  }
}

TEST_CASE("inputs that lie otherwise in memory have a graph of their own") {
  Part part(fake_device());
  CapturedLog log;
  for (int64_t number = 0; number < 6; ++number) {
    pass_of(part, at::ones({2, 3}));
    pass_of(part, at::ones({3, 2}).t());
  }
  CHECK(log.count(kInUse) == 2);
}

TEST_CASE("work that cannot be recorded runs without a graph, and the log says why") {
  std::optional<Part> part;
  const auto plain = [&](const Tensors& inputs) { return part->module->forward(inputs[0]).sum(); };
  using Case = std::pair<std::string, std::function<at::Tensor(const Tensors&)>>;
  const std::vector<Case> cases = {
      Case{"which the host reads",
           [&](const Tensors& inputs) { return plain(inputs) * inputs[0][0][0].item<double>(); }},
      Case{"a copy from the host",
           [&](const Tensors& inputs) {
             return plain(inputs) + at::ones({2}).to(fake_device()).sum();
           }},
      Case{"a copy to the host",
           [&](const Tensors& inputs) {
             return plain(inputs) + plain(inputs).cpu().sum().item<double>() * 0;
           }},
      Case{"random numbers", [&](const Tensors& inputs) {
             return plain(inputs) * at::ones({1}).to(fake_device()).sum() +
                    0 * at::rand(
                            {2}, make_generator({1, "x"}, fake_device()), at::device(fake_device()))
                            .sum();
           }}};
  for (const auto& [why, loss_of] : cases) {
    part.emplace(fake_device());
    CapturedLog log;
    expect_passes(
        [&, &of = loss_of](const Tensors& inputs, bool) { return backward_of(of(inputs)); },
        *part,
        7);
    INFO(log.text());
    CHECK(log.count(LogLevel::kWarning) == 1);
    CHECK(log.count("toy: passes of 2 samples: run without a CUDA graph: ") == 1);
    CHECK(log.count(why) == 1);
  }
}

TEST_CASE("a number of the host that changes is found before its graph is used") {
  Part part(fake_device());
  CapturedLog log;
  for (int64_t number = 0; number < 7; ++number) {
    const RecordablePass pass{{at::ones({2, 3}).to(fake_device())}};
    const auto work = [&](const Tensors& inputs, bool) {
      return backward_of(part.module->forward(inputs[0]).sum() * static_cast<double>(number + 1));
    };
    part.gradients.zero_grad();
    at::Tensor loss = part.graphs.replay(pass, 1.0);
    CHECK_FALSE(loss.defined());
    part.graphs.run(pass, 1.0, work);
  }
  INFO(log.text());
  CHECK(log.count("gradients differ by 2.0e-01") == 1);
}

TEST_CASE("last bits may differ, but not in a deterministic run") {
  Part part(fake_device());
  const bool is_deterministic = GENERATE(false, true);
  at::globalContext().setDeterministicAlgorithms(is_deterministic, /*warn_only=*/true);
  CapturedLog log;
  for (int64_t number = 0; number < 6; ++number) {
    pass_of(part, at::ones({2, 3}), [&](const Tensors& inputs, bool) {
      return backward_of(part.module->forward(inputs[0]).sum() *
                         (1 + 1e-5 * static_cast<double>(number)));
    });
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  INFO(log.text());
  CHECK(log.count(kInUse) == (is_deterministic ? 0 : 1));
  CHECK(log.count("gradients differ by 1.0e-05") == (is_deterministic ? 1 : 0));
}

TEST_CASE("a pass that is checked writes running means once") {
  Part part(fake_device());
  const at::Tensor mean = part.mean;
  const auto work = [&](const Tensors& inputs, bool) {
    const torch::NoGradGuard no_grad;
    mean.add_(inputs[0].mean());
    const at::AutoGradMode with_grad(true);
    return backward_of(part.module->forward(inputs[0]).sum());
  };
  for (int64_t number = 1; number <= 8; ++number) {
    pass_of(part, at::ones({2, 3}), work);
    CHECK(mean.cpu().item<float>() == static_cast<float>(number));
  }
}

TEST_CASE("a part has at most 16 graphs, and passes that come once take none") {
  Part part(fake_device());
  CapturedLog log;
  for (int64_t samples = 1; samples <= 100; ++samples) pass_of(part, at::ones({samples, 3}));
  for (int64_t samples = 101; samples <= 118; ++samples) {
    for (int64_t number = 0; number < 5; ++number) pass_of(part, at::ones({samples, 3}));
  }
  INFO(log.text());
  CHECK(log.count(kInUse) == 16);
  CHECK(log.count("toy: passes have more than 16 shapes") == 1);
}

TEST_CASE("where there are no graphs a run says so") {
  DecoderTrainConfig config = cascade().train_config();
  config.cuda_graph = true;
  const CapturedLog log;
  const auto trainer = cascade().trainer(config, at::kCPU);
  ProcessGroup alone;
  trainer->connect(alone, {});
  CHECK(log.count("/train/cuda_graph has no effect on the CPU") == 1);
  trainer->step(drawn_inputs(2, 1), 1, make_generator({0, "train"}, at::kCPU));
  trainer->update(1);
  CHECK(trainer->steps(1) == 1);
}

}  // namespace
}  // namespace dalle2::test
