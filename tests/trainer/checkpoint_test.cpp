// SPDX-License-Identifier: MIT

#include "base/error.h"
#include "checkpoint/pickle/pth.h"
#include "support/captured_log.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

/// Five steps, and an update that is skipped for a picture that is NaN.
void train_part(DecoderTrainer& trainer, int64_t begin) {
  test::train(trainer, begin, begin + 5);
  test::bad_step(trainer, 2, begin);
}

TEST_CASE("training on from a checkpoint is bit for bit the run without a break, twice over") {
  using Change = void (*)(DecoderTrainConfig&);
  const std::pair<const char*, Change> kinds[] = {
      {"plain", [](auto&) {}},
      {"diffusers", [](auto& c) { c.ema.kind = EmaKind::diffusers; }},
      {"bf16", [](auto& c) { c.mixed_precision = MixedPrecision::bf16; }},
      {"fp16", [](auto& c) { c.mixed_precision = MixedPrecision::fp16; }},
      {"averages for a choice after training",
       [](auto& c) { c.use_ema = false, c.post_hoc_ema.save_every_n_steps = 2; }},
      {"adapters", [](auto& c) { c.lora.rank = 2, c.lora.dropout = 0.3; }},
      {"adapters with biases and diffusers on bf16", [](auto& c) {
         c.lora.rank = 2, c.lora.dropout = 0.3, c.lora.train_bias = true;
         c.frozen_dtype = FrozenDtype::bf16, c.ema.kind = EmaKind::diffusers;
       }}};
  for (const char* name : {"cascade", "masked"}) {
    for (const auto& [kind, change] : kinds) {
      CAPTURE(name, kind);
      const test::TrainerFixture fixture(name);
      DecoderTrainConfig config = fixture.train_config();
      change(config);
      const auto begun = [&](uint64_t seed) {  // of adapters
        torch::manual_seed(seed);
        return fixture.trainer(config);
      };
      const test::TempDir folder;
      const auto unbroken = begun(4);
      auto trainer = begun(4);
      for (const int64_t begin : {0, 5, 10}) {
        train_part(*unbroken, begin);
        train_part(*trainer, begin);
        write_pth(folder / "checkpoint.pth", trainer->state());
        trainer = begun(99);
        CHECK(test::bits_of(*trainer) != test::bits_of(*unbroken));
        trainer->load_state(read_pth(folder / "checkpoint.pth"));
      }
      CHECK(test::bits_of(*trainer) == test::bits_of(*unbroken));
      CHECK(trainer->skipped_updates(2).total >= 3);
      CHECK(trainer->loss_scale(2) == unbroken->loss_scale(2));
    }
  }
}

TEST_CASE("a loaded checkpoint is not tied to its file") {
  const test::TempDir folder;
  const auto trainer = test::cascade().trainer();
  test::train(*trainer, 0, 2);
  const std::string path = folder / "checkpoint.pth";
  write_pth(path, trainer->state());
  const auto other = test::cascade().trainer();
  other->load_state(read_pth(path));
  const std::string before = test::bits_of(*other);
  CHECK(before == test::bits_of(*trainer));
  test::train(*other, 2, 4);
  write_pth(path, other->state());  // over the file it was read from
  CHECK(test::bits_of(*other) != before);
}

TEST_CASE("a stage of another run is carried along in its place, weights as they are") {
  const test::TrainerFixture all("cascade"), second("masked");
  const Dict other = all.trainer()->state();
  const StateDict weights = Cursor(other).at("model").as_state_dict();
  const auto trainer = second.trainer();
  CHECK(trainer->carry(weights, "a.pth").size() == 1);
  const Dict state = trainer->state();
  const StateDict joined = Cursor(state).at("model").as_state_dict();
  REQUIRE(joined.size() == weights.size());
  size_t carried = 0;
  for (size_t i = 0; i < joined.size(); ++i) {
    INFO(joined[i].first);
    CHECK(joined[i].first == weights[i].first);
    if (!joined[i].first.starts_with("unets.0.")) continue;
    CHECK(at::equal(joined[i].second, weights[i].second));
    ++carried;
  }
  CHECK(carried > 50);
}

TEST_CASE("without averages there is no ema key, and averages from such a file start over") {
  DecoderTrainConfig config = test::cascade().train_config();
  config.use_ema = false;
  const auto trainer = test::cascade().trainer(config);
  test::train(*trainer, 0, 4);
  const Dict state = trainer->state();
  CHECK(state.find("ema") == nullptr);

  test::CapturedLog log;
  const auto other = test::cascade().trainer();
  other->load_state(state, false, true, "a.pth");
  CHECK(log.count("a.pth") == 1);
  CHECK(log.count("no averaged weights") == 1);
  CHECK(other->ema_decay(1) == 0.0);
  CHECK(at::equal(TrainerProbe::averaged(*other, 1)[0].value(),
                  trainer->decoder()->unet(1)->parameters()[0]));
  CHECK(other->steps(1) == trainer->steps(1));
}

TEST_CASE("the model file has the averaged weights and leaves the live ones in the decoder") {
  const auto trainer = test::cascade().trainer();
  test::train(*trainer, 0, 10);
  const std::string before = test::bits_of(*trainer);
  const Dict state = trainer->model_state({{"config", "text"}});
  CHECK(test::bits_of(*trainer) == before);
  REQUIRE(state.items.size() == 3);
  CHECK(state.items[0].first.as_string() == "version");
  CHECK(state.items[1].first.as_string() == "config");
  CHECK(state.items[2].first.as_string() == "model");
  const at::Tensor saved =
      state.find("model")->as_dict().find("unets.0.init_conv.convs.0.weight")->as_tensor();
  CHECK(at::equal(saved, TrainerProbe::averaged(*trainer, 1)["init_conv.convs.0.weight"]));
  CHECK_FALSE(at::equal(
      saved, trainer->decoder()->unet(1)->named_parameters()["init_conv.convs.0.weight"]));
}

TEST_CASE("loading the weights alone takes no optimizer and starts the averages over") {
  const auto trainer = test::cascade().trainer();
  test::train(*trainer, 0, 10);
  const auto other = test::cascade().trainer();
  other->load_state(trainer->state(), /*only_model=*/true);
  CHECK(other->steps(1) == trainer->steps(1));
  CHECK(at::equal(other->decoder()->unet(1)->parameters()[0],
                  trainer->decoder()->unet(1)->parameters()[0]));
  CHECK(at::equal(TrainerProbe::averaged(*other, 1)[0].value(),
                  trainer->decoder()->unet(1)->parameters()[0]));
  const Dict state = other->state();
  CHECK(state.find("optim0")->as_dict().find("state")->as_dict().items.empty());
  CHECK_FALSE(state.find("ema")->as_dict().find("0.initted")->as_bool());
}

Dict without(const Dict& dict, const std::string& key) {
  Dict result;
  result.ordered = dict.ordered;
  for (const auto& [name, value] : dict.items) {
    if (name.as_string() != key) result.items.emplace_back(name, value);
  }
  return result;
}

TEST_CASE("missing and unexpected tensors are listed and fatal, unless loading is not strict") {
  const auto trainer = test::cascade().trainer();
  Dict state = trainer->state();
  Dict model = without(state.find("model")->as_dict(), "unets.0.null_image_embed");
  model.set("unets.0.stranger", at::ones({2}));
  state.set("model", model);
  CHECK_THROWS_WITH(trainer->load_state(state, false, true, "a.pth"),
                    Catch::Contains("a.pth") && Catch::Contains("unets.0.null_image_embed") &&
                        Catch::Contains("unets.0.stranger"));
  test::CapturedLog log;
  trainer->load_state(state, false, /*strict=*/false);
  CHECK(log.count(LogLevel::kWarning) == 1);
  CHECK(log.count("unets.0.null_image_embed") == 1);
}

TEST_CASE("a checkpoint of another version is mentioned and loaded") {
  const auto trainer = test::cascade().trainer();
  Dict state = trainer->state();
  test::CapturedLog log;
  trainer->load_state(state);
  CHECK(log.lines().empty());
  state.set("version", "1.2.3");
  trainer->load_state(state);
  CHECK(log.count("1.2.3") == 1);
}

TEST_CASE("what does not fit is named with its place") {
  const auto trainer = test::cascade().trainer();
  test::train(*trainer, 0, 2);
  const Dict good = trainer->state();
  const auto refused = [&](auto change, const std::string& part) {
    Dict bad = good;
    change(bad);
    INFO(part);
    CHECK_THAT(test::message_of<DataError>(
                   [&] { test::cascade().trainer()->load_state(bad, false, true, "a.pth"); }),
               Catch::Contains("a.pth") && Catch::Contains(part));
  };
  refused([](Dict& d) { d = without(d, "steps"); }, "steps");
  refused([](Dict& d) { d = without(d, "optim1"); }, "optim1");
  refused([](Dict& d) { d.set("steps", at::zeros({3}, at::kLong)); }, "2 unets, got 3");
  refused([](Dict& d) { d.set("optim0", Value()); }, "unet_training_mask");
  refused([](Dict& d) { d.set("optim0", *d.find("optim1")); },
          "expected 2 groups of parameters, got 1");
  refused(
      [](Dict& d) {
        Dict optimizer = d.find("optim0")->as_dict();
        Dict states = optimizer.find("state")->as_dict();
        states.items[0].second.as_dict().set("exp_avg", at::zeros({1}));
        optimizer.set("state", states);
        d.set("optim0", optimizer);
      },
      "/optim0/state");
  const auto parameters = static_cast<int64_t>(trainer->decoder()->unet(2)->parameters().size());
  for (const int64_t index : {int64_t{-1}, parameters}) {
    refused(
        [&](Dict& d) {
          Dict optimizer = d.find("optim1")->as_dict();
          Dict states = optimizer.find("state")->as_dict();
          states.items[0].first = Value(index);
          optimizer.set("state", states);
          d.set("optim1", optimizer);
        },
        fmt::format("expected indices of {} parameters, got {}", parameters, index));
  }
  CHECK_THROWS_AS(trainer->load_state(Value("text")), DataError);
}

TEST_CASE("settings that differ from the checkpoint's are mentioned, and this run's apply") {
  const Dict state = test::cascade().trainer()->state();
  DecoderTrainConfig config = test::cascade().train_config();
  config.lr = 2e-3;
  const auto trainer = test::cascade().trainer(config);
  test::CapturedLog log;
  trainer->load_state(state);
  CHECK(log.count("/train/lr = 0.002") > 0);
  CHECK(trainer->learning_rate(1) == Approx(2e-3 / 3));
}

}  // namespace
}  // namespace dalle2
