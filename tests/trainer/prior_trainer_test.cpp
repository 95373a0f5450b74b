// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/pth.h"
#include "prior_trainer_fixture.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

const PriorTrainerFixture& fixture() {
  static const PriorTrainerFixture adamw("adamw");
  return adamw;
}

std::unique_ptr<PriorTrainer> trainer_with(const nlohmann::json& more) {
  nlohmann::json section = fixture().data().json.at("train");
  if (!more.is_null()) section.update(more);
  torch::manual_seed(5);  // adapters begin at random
  return fixture().trainer(prior_train_config(section));
}

TEST_CASE("a prior's run that is saved and resumed is the run that went on, bit for bit") {
  const TempDir folder;
  const std::vector<nlohmann::json> kinds = {
      nlohmann::json::object(),
      {{"ema", {{"kind", "diffusers"}, {"use_ema_warmup", true}}}},
      {{"use_ema", false}},
      {{"mixed_precision", "bf16"}},
      {{"mixed_precision", "fp16"}},
      {{"lora", {{"rank", 2}, {"dropout", 0.2}, {"train_bias", true}}}},
      {{"min_snr_gamma", 5.0},
       {"loss_weighting", "cosmap"},
       {"timestep_sampling", {{"scheme", "logit_normal"}}},
       {"input_perturbation", 0.1},
       {"max_batch_size", 2}}};
  for (const nlohmann::json& kind : kinds) {
    INFO(kind.dump());
    const auto whole = trainer_with(kind);
    train(*whole, 0, 8);
    const auto first = trainer_with(kind);
    train(*first, 0, 4);
    const std::string path = folder / "prior.pth";
    write_pth(path, first->state({{"epoch", 1}}));
    const auto second = trainer_with(kind);
    train(*second, 0, 2);  // whatever it was before is forgotten
    second->load_state(read_pth(path), false, true, path);
    CHECK((bits_of(*second) == bits_of(*first)));
    train(*second, 4, 8);
    CHECK((bits_of(*second) == bits_of(*whole)));
    CHECK(second->steps() == whole->steps());  // fp16 skips some to find its scale
  }
}

TEST_CASE("the chunk of a prior's batch changes neither loss nor gradients") {
  const auto whole = trainer_with({});
  const PriorInputs inputs = drawn_prior_inputs(5, 1);
  const auto generator = [] { return make_generator({0, "train"}, at::kCPU); };
  const double loss = whole->step(inputs, generator()).item<double>();
  for (const int64_t chunk : {1, 2, 5, 9}) {
    const auto parts = trainer_with({{"max_batch_size", chunk}});
    CHECK(parts->step(inputs, generator()).item<double>() == Approx(loss).epsilon(1e-5));
    const auto expected = whole->prior()->net()->named_parameters();
    for (const auto& item : parts->prior()->net()->named_parameters()) {
      if (!expected[item.key()].grad().defined()) {
        CHECK_FALSE(item.value().grad().defined());
        continue;
      }
      // A sum in another order: 1e-6 of the largest terms, of which gradients are differences.
      expect_close(item.value().grad(), expected[item.key()].grad(), 1e-4, item.key());
    }
  }
}

TEST_CASE("a prior is evaluated without dropout, and trains on with it") {
  const auto with_dropout = [](double share) {
    return trainer_with({{"lora", {{"rank", 2}, {"dropout", share}}}});
  };
  const auto dropping = with_dropout(0.5), whole = with_dropout(0.0);
  train(*dropping, 0, 4);
  const TempDir folder;
  const std::string path = folder / "prior.pth";
  write_pth(path, dropping->state());
  whole->load_state(read_pth(path), false, true, path);
  const PriorInputs inputs = drawn_prior_inputs(5, 1);
  const auto generator = [] { return make_generator({0, "validate"}, at::kCPU); };
  for (const bool averaged : {false, true}) {
    const double loss = whole->evaluate(inputs, generator(), averaged).item<double>();
    CHECK(dropping->evaluate(inputs, generator(), averaged).item<double>() == loss);
  }
  CHECK(dropping->step(inputs, generator()).item<double>() !=
        whole->step(inputs, generator()).item<double>());
}

TEST_CASE("without averages a prior samples with its weights and saves none") {
  const auto trainer = trainer_with({{"use_ema", false}});
  train(*trainer, 0, 2);
  CHECK_FALSE(trainer->ema_decay());
  CHECK(trainer->state().find("ema") == nullptr);
  CHECK(trainer->state().find("ema_model") == nullptr);
  PriorSampleOptions options;
  options.text = fixture().texts();
  options.timesteps = 4;
  options.noise = prior_wave_noise();
  const at::Tensor averaged = trainer->p_sample_loop(options);
  options.noise = prior_wave_noise();
  CHECK(at::equal(averaged, trainer->p_sample_loop(options, /*use_non_ema=*/true)));
}

TEST_CASE("a prior's validation is of the live or the averaged weights and changes nothing") {
  const auto trainer = trainer_with({});
  train(*trainer, 0, 6);
  const std::string before = bits_of(*trainer);
  const PriorInputs inputs = drawn_prior_inputs(4, 3);
  const auto loss = [&](bool averaged, std::optional<int64_t> chunk) {
    TrainerProbe::set_max_batch_size(*trainer, chunk);
    return trainer->evaluate(inputs, make_generator({0, "validate"}, at::kCPU), averaged)
        .item<double>();
  };
  CHECK(loss(false, {}) != loss(true, {}));
  CHECK(loss(true, 3) == Approx(loss(true, {})).epsilon(1e-5));
  CHECK((bits_of(*trainer) == before));
  CHECK(trainer->prior()->is_training());
}

TEST_CASE("adapters of a prior alone are trained, and merge into plain weights") {
  const auto trainer = trainer_with({{"lora", {{"rank", 2}}}, {"use_ema", false}});
  const auto plain = trainer_with({{"use_ema", false}});
  train(*trainer, 0, 5);
  for (const auto& item : trainer->prior()->net()->named_parameters()) {
    if (item.key().find(".lora.") == std::string::npos)
      CHECK(at::equal(item.value(), plain->prior()->net()->named_parameters()[item.key()]));
  }
  const LoraFile file = *trainer->lora_state();
  CHECK(file.tensors.size() == 12);  // two layers of three projections
  CHECK(file.tensors.front().first.starts_with("net.causal_transformer.layers.0.0.to_q.lora."));

  const Dict merged = trainer->model_state();
  plain->load_state(Dict{{{"model", *merged.find("model")}, {"step", at::zeros({1}, at::kLong)}}},
                    true);
  PriorSampleOptions options;
  options.text = fixture().texts();
  options.noise = prior_wave_noise();
  options.timesteps = 4;
  const at::Tensor adapted = trainer->p_sample_loop(options);
  options.noise = prior_wave_noise();
  // The product of two matrices is added to the weights, not to the layer's output: a difference in
  // rounding, which the steps of a loop feed back; twenty of them made it 17 % for some adapters.
  expect_close(plain->p_sample_loop(options), adapted, 1e-3, "merged");
  CHECK_THAT(message_of([&] { plain->load_state(trainer->state(), false, true, "a.pth"); }),
             Contains("a.pth: holds adapters, and this run has none"));
}

TEST_CASE("what does not fit a prior's trainer is refused with what was expected") {
  CHECK_THAT(message_of([] {
               trainer_with({{"lora", {{"rank", 2}, {"targets", {"to_x"}}}}});
             }),
             Contains("to_x"));
  const auto trainer = trainer_with({});
  CHECK_THAT(message_of([&] {
               trainer->step({}, make_generator({0, "train"}, at::kCPU));
             }),
             Contains("image embeddings: expected a batch [B, D] of at least one, got nothing"));
  CHECK_THAT(message_of([&] { trainer->p_sample_loop({}); }),
             Contains("text embeddings: expected a batch [B, D] of at least one, got nothing"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{8}, {0, 8}, {2, 1, 8}}) {
    const std::string got = "of at least one, got " + c10::str(at::IntArrayRef(shape));
    CHECK_THAT(message_of([&] {
                 PriorInputs inputs;
                 inputs.image_embeds = at::ones(shape);
                 trainer->step(inputs, make_generator({0, "train"}, at::kCPU));
               }),
               Contains("image embeddings: expected a batch [B, D] " + got));
    CHECK_THAT(message_of([&] {
                 PriorSampleOptions options;
                 options.text.embeds = at::ones(shape);
                 trainer->p_sample_loop(options);
               }),
               Contains("text embeddings: expected a batch [B, D] " + got));
  }
  Dict broken = trainer->state();
  broken.set("step", at::zeros({2}, at::kLong));
  CHECK_THAT(message_of([&] { trainer->load_state(broken, false, true, "b.pth"); }),
             Contains("expected one step count, got 2"));
}

}  // namespace
}  // namespace dalle2::test
