// SPDX-License-Identifier: MIT
// Updates whose loss or gradient is not finite, and half precision, which makes some.
#include "support/captured_log.h"
#include "trainer_fixture.h"

namespace dalle2 {

namespace {

std::unique_ptr<DecoderTrainer> trainer_with(MixedPrecision precision,
                                             EmaKind kind = EmaKind::ema_pytorch) {
  DecoderTrainConfig config = test::cascade().train_config();
  config.mixed_precision = precision;
  config.ema.kind = kind;
  return test::cascade().trainer(config);
}

void train_step(DecoderTrainer& trainer, int64_t unet, int64_t i) {
  trainer.step(test::drawn_inputs(2, i), unet, make_generator({0, "train", 0, i}, at::kCPU));
  trainer.update(unet);
}

TEST_CASE("an update with a loss that is NaN changes nothing and is counted") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    const auto trainer = trainer_with(MixedPrecision::no, kind);
    const auto untouched = trainer_with(MixedPrecision::no, kind);
    for (int64_t i = 0; i < 5; ++i) {
      train_step(*trainer, 1, i);
      train_step(*untouched, 1, i);
    }
    const std::string before = test::bits_of(*trainer);
    const double rate = trainer->learning_rate(1);
    test::bad_step(*trainer, 1);
    test::bad_step(*trainer, 1);
    CHECK(trainer->skipped_updates(1) == SkippedUpdates{2, 2});
    CHECK(trainer->skipped_updates(2) == SkippedUpdates{0, 0});
    CHECK(trainer->steps(1) == 5);
    CHECK(trainer->learning_rate(1) == rate);
    CHECK_FALSE(std::isfinite(trainer->last_grad_norm(1).item<double>()));
    CHECK_FALSE(trainer->non_finite_part());

    trainer->set_skipped_updates(1, {});
    CHECK(test::bits_of(*trainer) == before);
    for (int64_t i = 5; i < 8; ++i) {
      train_step(*trainer, 1, i);
      train_step(*untouched, 1, i);
    }
    CHECK(test::bits_of(*trainer) == test::bits_of(*untouched));
  }
}

TEST_CASE("a finite loss with an infinite gradient is skipped as well") {
  const auto trainer = trainer_with(MixedPrecision::no);
  const std::string before = test::bits_of(*trainer);
  const at::Tensor loss = trainer->step(
      test::drawn_inputs(2, 1), 1, make_generator({0, "train"}, at::kCPU), {.weight = 1e38});
  CHECK(std::isfinite(loss.item<double>()));
  trainer->update(1);
  CHECK(trainer->skipped_updates(1) == SkippedUpdates{1, 1});
  trainer->set_skipped_updates(1, {});
  CHECK(test::bits_of(*trainer) == before);
}

TEST_CASE("an infinite loss whose gradient is finite is skipped as well") {
  const auto trainer = trainer_with(MixedPrecision::no);
  train_step(*trainer, 1, 0);
  trainer->step(test::drawn_inputs(2, 1), 1, make_generator({0, "train"}, at::kCPU));
  add_to(TrainerProbe::contents(*trainer).parts[0]->loss, at::full({}, INFINITY));
  trainer->update(1);
  CHECK(std::isfinite(trainer->last_grad_norm(1).item<double>()));
  CHECK(trainer->skipped_updates(1) == SkippedUpdates{1, 1});
  train_step(*trainer, 1, 1);  // the loss of the skipped update is forgotten
  CHECK(trainer->skipped_updates(1) == SkippedUpdates{1, 0});
  CHECK(trainer->steps(1) == 2);
}

TEST_CASE("one bad batch of several spoils only their update") {
  const auto trainer = trainer_with(MixedPrecision::no),
             untouched = trainer_with(MixedPrecision::no);
  trainer->step(test::drawn_inputs(2, 1), 1, make_generator({0, "train"}, at::kCPU));
  test::bad_step(*trainer, 1);
  train_step(*trainer, 1, 3);
  train_step(*untouched, 1, 3);
  CHECK(trainer->skipped_updates(1) == SkippedUpdates{1, 0});
  trainer->set_skipped_updates(1, {});
  CHECK(test::bits_of(*trainer) == test::bits_of(*untouched));
}

TEST_CASE("an update that is settled later, as on a GPU, is the same bit for bit") {
  for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::fp16}) {
    const auto at_once = trainer_with(precision), later = trainer_with(precision);
    TrainerContents& state = TrainerProbe::contents(*later);
    TrainerProbe::settle_late(*later);
    for (DecoderTrainer* trainer : {at_once.get(), later.get()}) {
      for (int64_t i = 0; i < 6; ++i) {
        train_step(*trainer, 1, i);
        train_step(*trainer, 2, i);
        if (i == 2 || i == 3) test::bad_step(*trainer, 1);
      }
    }
    CHECK(state.parts[0]->outcome.pending());
    CHECK(at_once->skipped_updates(1) == later->skipped_updates(1));
    CHECK_FALSE(state.parts[0]->outcome.pending());
    CHECK(test::bits_of(*at_once) == test::bits_of(*later));
  }
}

TEST_CASE("a late update is not counted or averaged before something asks") {
  const auto trainer = trainer_with(MixedPrecision::no);
  TrainerContents& state = TrainerProbe::contents(*trainer);
  TrainerProbe::settle_late(*trainer);
  const AverageRule& ema = state.parts[0]->average->rule();
  train_step(*trainer, 1, 0);
  CHECK(state.steps[0] == 0);
  CHECK(ema.step() == 0);
  CHECK(trainer->steps(1, /*settled=*/false) == 1);
  SECTION("a sample") {
    DecoderSampleOptions options;
    options.image_embeds = at::zeros({1, 8});
    options.stop_at_unet = 1;
    options.generator = make_generator({0, "sample"}, at::kCPU);
    trainer->sample(options);
  }
  SECTION("the rate") {
    CHECK(trainer->learning_rate(1) > 5e-4);  // 1/3, then 2/3 of 1e-3
  }
  SECTION("the decay") {
    trainer->ema_decay(1);
  }
  SECTION("the state") {
    trainer->state();
  }
  SECTION("the model") {
    trainer->model_state();
  }
  SECTION("the average") {
    TrainerProbe::averaged(*trainer, 1);
  }
  SECTION("the next update") {
    train_step(*trainer, 1, 1);
    CHECK(state.parts[0]->outcome.pending());
  }
  CHECK(state.steps[0] == 1);
  CHECK(ema.step() == 1);
  CHECK(trainer->skipped_updates(1, /*settled=*/false) == SkippedUpdates{});
}

TEST_CASE("each unet has a loss scale of its own") {
  const auto trainer = trainer_with(MixedPrecision::fp16);
  CHECK(trainer->loss_scale(1) == 65536.0);
  test::bad_step(*trainer, 1);
  test::bad_step(*trainer, 1);
  CHECK(trainer->loss_scale(1) == 16384.0);
  CHECK(trainer->loss_scale(2) == 65536.0);
  CHECK_FALSE(trainer_with(MixedPrecision::bf16)->loss_scale(1));
}

TEST_CASE("the reported loss and norm are free of the loss scale") {
  const auto full = trainer_with(MixedPrecision::no), half = trainer_with(MixedPrecision::fp16);
  TrainerProbe::contents(*half).parts[0]->scaler->set_state(1024, 0);
  std::vector<double> losses, norms;
  for (DecoderTrainer* trainer : {full.get(), half.get()}) {
    TrainerProbe::set_max_batch_size(*trainer, 1);
    losses.push_back(
        trainer->step(test::drawn_inputs(2, 1), 1, make_generator({0, "train"}, at::kCPU))
            .item<double>());
    trainer->update(1);
    norms.push_back(trainer->last_grad_norm(1).item<double>());
  }
  CHECK(half->skipped_updates(1).total == 0);
  // 11 bits, some dozens of layers, and norms with another eps.
  CHECK(losses[1] == Approx(losses[0]).epsilon(0.05));
  CHECK(norms[1] == Approx(norms[0]).epsilon(0.5));
}

TEST_CASE("steps and evaluations are in the precision of the config, weights and sums in float32") {
  const DecoderInputs inputs = test::drawn_inputs(2, 1);
  const auto loss_of = [&](MixedPrecision precision, bool evaluates) {
    const auto trainer = trainer_with(precision);
    const at::Generator generator = make_generator({0, "train"}, at::kCPU);
    const at::Tensor loss =
        evaluates ? trainer->evaluate(inputs, 1, generator) : trainer->step(inputs, 1, generator);
    CHECK(loss.scalar_type() == at::kFloat);
    if (!evaluates) trainer->update(1);
    for (const at::Tensor& parameter : trainer->decoder()->unet(1)->parameters())
      REQUIRE(parameter.scalar_type() == at::kFloat);
    return loss.item<float>();
  };
  for (const MixedPrecision precision : {MixedPrecision::bf16, MixedPrecision::fp16}) {
    CHECK(loss_of(precision, true) == loss_of(precision, false));
    CHECK(loss_of(precision, true) != loss_of(MixedPrecision::no, true));
    CHECK(loss_of(precision, true) == Approx(loss_of(MixedPrecision::no, true)).epsilon(0.05));
  }
}

TEST_CASE("a checkpoint has the scale as torch.amp.GradScaler saves it, and only with fp16") {
  const auto half = trainer_with(MixedPrecision::fp16);
  const Value state = half->state();
  const Cursor scaler = Cursor(state).at("scaler1");
  CHECK(scaler.at("scale").as_double() == 65536.0);
  CHECK(scaler.at("growth_factor").as_double() == 2.0);
  CHECK(scaler.at("backoff_factor").as_double() == 0.5);
  CHECK(scaler.at("growth_interval").as_int() == 2000);
  CHECK(scaler.at("_growth_tracker").as_int() == 0);
  CHECK(state.as_dict().find("skipped_updates") == nullptr);
  const Dict full = trainer_with(MixedPrecision::no)->state();
  CHECK(full.items.back().first.as_string() == "ema");
}

TEST_CASE("from a checkpoint without a loss scale a run begins with the usual one") {
  const auto half = trainer_with(MixedPrecision::fp16), full = trainer_with(MixedPrecision::no);
  test::bad_step(*half, 1);
  train_step(*full, 1, 0);
  test::CapturedLog log;
  half->load_state(full->state(), false, true, "a.pth");
  CHECK(log.count("a.pth: no loss scale 'scaler0' (it was not made with fp16): it begins with "
                  "65536") == 1);
  CHECK(half->loss_scale(1) == 65536.0);
  CHECK(half->skipped_updates(1) == SkippedUpdates{});
  CHECK(half->steps(1) == 1);
}

TEST_CASE("a loss scale or counts of skipped updates that make no sense are refused") {
  const auto half = trainer_with(MixedPrecision::fp16);
  const auto refused = [&](auto change, const std::string& message) {
    Dict state = half->state();
    change(state);
    CHECK_THROWS_WITH(trainer_with(MixedPrecision::fp16)->load_state(state, false, true, "a.pth"),
                      message);
  };
  const auto with = [](const char* key, const Value& value) {
    return [=](Dict& state) {
      Dict scaler = state.find("scaler0")->as_dict();
      scaler.set(key, value);
      state.set("scaler0", scaler);
    };
  };
  refused(with("scale", NAN),
          "a.pth: /scaler0/scale: expected a loss scale, a finite number >= 0, got nan");
  refused(with("_growth_tracker", 2000),
          "a.pth: /scaler0/_growth_tracker: expected a count of updates from 0 to 1999, got 2000");
  refused(
      [](Dict& state) {
        state.set("skipped_updates", at::zeros({3, 2}, at::kLong));
      },
      "a.pth: /skipped_updates: expected the skipped updates of 2 unets, [2, 2], got [3, 2]");
}

TEST_CASE("weights and averages that are not finite are found") {
  const torch::NoGradGuard no_grad;
  const auto trainer = trainer_with(MixedPrecision::no);
  CHECK_FALSE(trainer->non_finite_part());
  at::Tensor average = TrainerProbe::averaged(*trainer, 2)[3].value();
  average.view(-1)[0] = INFINITY;
  CHECK(trainer->non_finite_part() == "averaged weights of unet 2");
  at::Tensor weight = trainer->decoder()->unet(1)->parameters()[5];
  weight.view(-1)[0] = NAN;
  CHECK(trainer->non_finite_part() == "weights of unet 1");

  const auto diffusers = trainer_with(MixedPrecision::no, EmaKind::diffusers);
  CHECK_FALSE(diffusers->non_finite_part());
  TrainerProbe::contents(*diffusers).parts[0]->average->values()[0] = NAN;
  CHECK(diffusers->non_finite_part() == "averaged weights of unet 1");
}

TEST_CASE("adapters train in half precision, on a base of half precision too") {
  for (const MixedPrecision precision : {MixedPrecision::bf16, MixedPrecision::fp16}) {
    for (const FrozenDtype base : {FrozenDtype::fp32, FrozenDtype::bf16, FrozenDtype::fp16}) {
      DecoderTrainConfig config = test::cascade().train_config();
      config.mixed_precision = precision;
      config.lora.rank = 2;
      config.frozen_dtype = base;
      const auto trainer = test::cascade().trainer(config);
      const auto adapters = [&] {
        return TrainerProbe::contents(*trainer).parts[0]->parameters.values().clone();
      };
      const at::Tensor before = adapters();
      train_step(*trainer, 1, 0);
      test::bad_step(*trainer, 1);
      CHECK(trainer->skipped_updates(1) == SkippedUpdates{1, 1});
      CHECK(trainer->steps(1) == 1);
      CHECK_FALSE(at::equal(adapters(), before));
      CHECK_FALSE(trainer->non_finite_part());
    }
  }
}

TEST_CASE("a factor of the learning rate holds for all unets and all steps") {
  const auto trainer = trainer_with(MixedPrecision::no), plain = trainer_with(MixedPrecision::no);
  trainer->set_learning_rate_factor(0.25);
  CHECK(trainer->learning_rate_factor() == 0.25);
  for (int64_t i = 0; i < 4; ++i) {
    for (const int64_t unet : {1, 2}) {
      CHECK(trainer->learning_rate(unet) == 0.25 * plain->learning_rate(unet));
      train_step(*trainer, unet, i);
      train_step(*plain, unet, i);
    }
  }
}

}  // namespace
}  // namespace dalle2
