// SPDX-License-Identifier: MIT
// Averages of diffusers' kind: their saved state, and a decoder that is trained with them.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pth.h"
#include "checkpoint/value_json.h"
#include "support/captured_log.h"
#include "support/pretrained_folder.h"
#include "support/temp_dir.h"
#include "trainer/ema_model_state.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

/// The module that make_ema_model.py saves.
struct Tiny : torch::nn::Module {
  struct Inner : torch::nn::Module {
    Inner() {
      register_parameter("weight", at::zeros({2, 4}));
      register_parameter("bias", at::zeros({2}));
    }
  };
  Tiny() {
    register_parameter("gain", at::zeros({4}));
    register_buffer("seen", at::ones({2}));
    register_module("inner", std::make_shared<Inner>());
  }
};

DecoderTrainConfig diffusers_config(const test::TrainerFixture& fixture) {
  DecoderTrainConfig config = fixture.train_config();
  config.ema.kind = EmaKind::diffusers;
  config.ema.decay = 0.7;
  return config;
}

TEST_CASE("the state of an EMAModel has upstream's keys in upstream's order") {
  const auto json = test::load_fixture("ema_model/defaults").json;
  const EmaModel average({at::ones({2})}, {});
  std::vector<std::string> keys;
  for (const auto& [key, value] : ema_model_state(average).items) keys.push_back(key.as_string());
  CHECK(keys == json.at("keys").get<std::vector<std::string>>());
}

TEST_CASE("a state that EMAModel refuses is refused with its text, and changes nothing") {
  const auto cases = test::load_fixture("ema_model/refusals").json.at("load_state_dict");
  REQUIRE(cases.size() == 11);
  for (const auto& refusal : cases) {
    EmaModel average({at::ones({2})}, {});
    nlohmann::json json = {{"optimization_step", 5}};
    json[refusal.at("key").get<std::string>()] = refusal.at("value");
    const Value state = value_of_json(json.dump());
    INFO(refusal.dump());
    CHECK_THROWS_WITH(load_ema_model_state(Cursor(state, "a.pth"), average),
                      Catch::Contains(refusal.at("message").get<std::string>()) &&
                          Catch::Contains("a.pth: /" + refusal.at("key").get<std::string>()));
    CHECK(average.optimization_step() == 0);
    CHECK(average.options() == EmaModelOptions{});
  }
}

TEST_CASE("a decay of 0 and one of 1 are taken") {
  for (const double decay : {0.0, 1.0}) {
    EmaModel average({at::ones({2})}, {});
    Dict state = ema_model_state(average);
    state.set("decay", decay);
    const Value value = state;
    load_ema_model_state(Cursor(value), average);
    CHECK(average.options().decay == decay);
  }
}

TEST_CASE("averages of other parameters are refused, and missing keys keep their values") {
  EmaModel average({at::ones({2})}, {});
  Dict state = ema_model_state(EmaModel({at::ones({2}), at::ones({2})}, {}));
  Value value = state;
  CHECK_THROWS_WITH(load_ema_model_state(Cursor(value, "a.pth"), average),
                    "a.pth: /shadow_params: expected the averages of 1 parameters, got 2");
  value = ema_model_state(EmaModel({at::ones({3})}, {}));
  CHECK_THROWS_WITH(load_ema_model_state(Cursor(value, "a.pth"), average),
                    "a.pth: /shadow_params/0: expected shape [2], got [3]");
  value = value_of_json(R"({"power": 1})");
  load_ema_model_state(Cursor(value), average);
  CHECK(average.options().power == 1.0);
  CHECK(average.options().decay == 0.9999);
  CHECK(at::equal(average.shadow_params()[0], at::ones({2})));
}

TEST_CASE("a folder of save_pretrained is read, and written so that it reads the same") {
  const test::Fixture expected = test::load_fixture("ema_model/pretrained_state");
  Tiny model;
  const EmaModel average =
      test::ema_model_from_pretrained(test::fixture_dir("ema_model") + "/pretrained", model);
  const auto check = [&](const EmaModel& read) {
    for (size_t i = 0; i < expected.tensors.size(); ++i) {
      CHECK(at::equal(read.shadow_params()[i], expected.tensor(std::to_string(i))));
    }
    Dict scalars = ema_model_state(read);
    scalars.items.pop_back();
    CHECK(nlohmann::json::parse(json_of_value(scalars)) == expected.json);
  };
  check(average);
  // What is written are the averages, whatever the model holds meanwhile.
  for (const at::Tensor& parameter : model.parameters()) parameter.detach().zero_();
  const test::TempDir folder;
  test::save_pretrained(average, folder / "out", &model, value_of_json(R"({"width": 4})"));
  Tiny other;
  check(test::ema_model_from_pretrained(folder / "out", other));
  CHECK(at::equal(other.parameters()[0], average.shadow_params()[0]));
}

TEST_CASE("saving as a folder needs a model and its config") {
  const auto texts = test::load_fixture("ema_model/refusals").json;
  const test::TempDir folder;
  const Tiny model;
  const EmaModel average(model.parameters(), {});
  CHECK_THROWS_WITH(test::save_pretrained(average, folder / "out", nullptr, Dict{}),
                    texts.at("model_cls").get<std::string>());
  CHECK_THROWS_WITH(test::save_pretrained(average, folder / "out", &model, Value()),
                    texts.at("model_config").get<std::string>());
  Tiny other;
  CHECK_THROWS_AS(test::ema_model_from_pretrained(folder / "absent", other), DataError);
}

TEST_CASE("a decoder is trained with diffusers' average: it follows each update") {
  const test::TrainerFixture fixture("cascade");
  DecoderTrainConfig config = diffusers_config(fixture);
  config.ema.offload = GENERATE(false, true);
  const auto trainer = fixture.trainer(config);
  EmaModelOptions options;
  options.decay = 0.7;
  EmaModel by_hand(trainer->decoder()->unet(1)->parameters(), options);
  for (int64_t step = 0; step < 8; ++step) {
    test::train(*trainer, step, step + 1);
    if (step % 2 == 0) by_hand.step(trainer->decoder()->unet(1)->parameters());
  }
  const auto averaged = trainer->ema_unet(1)->parameters();
  for (size_t i = 0; i < averaged.size(); ++i) {
    CHECK(at::equal(averaged[i], by_hand.shadow_params()[i]));
  }
  CHECK_FALSE(at::equal(averaged[0], trainer->decoder()->unet(1)->parameters()[0]));
  CHECK(trainer->ema_decay(1) == by_hand.get_decay(5));
  const std::string before = test::bits_of(*trainer);
  const Dict model = trainer->model_state();
  CHECK(at::equal(
      model.find("model")->as_dict().find("unets.0.init_conv.convs.0.weight")->as_tensor(),
      trainer->ema_unet(1)->named_parameters()["init_conv.convs.0.weight"]));
  CHECK(test::bits_of(*trainer) == before);
}

TEST_CASE("with diffusers' average too, training on from a checkpoint is the unbroken run") {
  const std::string name = GENERATE(as<std::string>{}, "cascade", "masked");
  const test::TrainerFixture fixture(name);
  const DecoderTrainConfig config = diffusers_config(fixture);
  const test::TempDir folder;
  const auto unbroken = fixture.trainer(config);
  test::train(*unbroken, 0, 15);
  auto trainer = fixture.trainer(config);
  for (const int64_t begin : {0, 5, 10}) {
    test::train(*trainer, begin, begin + 5);
    write_pth(folder / "checkpoint.pth", trainer->state());
    trainer = fixture.trainer(config);
    trainer->load_state(read_pth(folder / "checkpoint.pth"));
  }
  CHECK(test::bits_of(*trainer) == test::bits_of(*unbroken));
  const Dict state = trainer->state();
  CHECK(state.find("ema") == nullptr);
  REQUIRE(state.find("ema_diffusers") != nullptr);
  CHECK(state.find("ema_diffusers")->as_sequence().size() == 2);
}

TEST_CASE("the averages of diffusers' kind are found in a checkpoint by their names") {
  const test::TrainerFixture fixture("cascade");
  const auto trainer = fixture.trainer(diffusers_config(fixture));
  test::train(*trainer, 0, 6);
  const Value checkpoint = trainer->state();
  const StateDict expected = Cursor(Value(trainer->model_state())).at("model").as_state_dict();
  const StateDict averaged = averaged_weights(Cursor(checkpoint, "a.pth"));
  REQUIRE(averaged.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(find_tensor(averaged, name) != nullptr);
    CHECK(at::equal(*find_tensor(averaged, name), tensor));
  }
}

TEST_CASE("a change of the kind or of the options of the average is mentioned") {
  const test::TrainerFixture fixture("cascade");
  const auto trainer = fixture.trainer();
  test::train(*trainer, 0, 4);
  DecoderTrainConfig config = diffusers_config(fixture);
  const auto other = fixture.trainer(config);
  test::CapturedLog log;
  other->load_state(trainer->state(), false, true, "a.pth");
  CHECK(log.count("no averaged weights 'ema_diffusers'") == 1);
  CHECK(
      at::equal(other->ema_unet(1)->parameters()[0], trainer->decoder()->unet(1)->parameters()[0]));
  config.ema.decay = 0.5;
  const auto third = fixture.trainer(config);
  third->load_state(other->state(), false, true, "b.pth");
  CHECK(log.count("averaged with other options (decay 0.7)") == 2);
  test::train(*third, 0, 30);
  CHECK(third->ema_decay(1).value() == 0.5);
}

TEST_CASE("the weights become their average where update_model_with_ema_every says so") {
  const test::TrainerFixture fixture("cascade");
  DecoderTrainConfig config = fixture.train_config();
  config.ema_update_after_step = 0;
  config.ema_update_every = 1;
  config.update_model_with_ema_every = 3;
  const auto trainer = fixture.trainer(config);
  std::vector<bool> equal;
  for (int64_t step = 0; step < 14; step += 2) {
    test::train(*trainer, step, step + 1);
    equal.push_back(at::equal(trainer->ema_unet(1)->parameters()[0],
                              trainer->decoder()->unet(1)->parameters()[0]));
  }
  // The first call copies; of the others the third, sixth, ... copy back.
  CHECK(equal == std::vector<bool>{true, false, false, true, false, false, true});
}

}  // namespace
}  // namespace dalle2
