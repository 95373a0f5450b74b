// SPDX-License-Identifier: MIT
#include "parity_checks.h"
#include "prior_trainer_fixture.h"
#include "runs_for_reference.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

using test::check_compact;
using test::expect_same;
using test::kGradNormTolerance;
using test::kLossTolerance;
using test::runs_with_checkpoint;

void play_from(const test::TrainerFixture& fixture, DecoderTrainer& trainer, size_t first) {
  for (size_t i = first; i < fixture.num_events(); ++i) {
    const nlohmann::json& event = fixture.event(i);
    INFO("event " << i << ": " << event.dump());
    const int64_t unet = event.at("unet").get<int64_t>();
    if (event.at("update").get<bool>())
      CHECK(trainer.learning_rate(unet) == Approx(event.at("lr").get<double>()).epsilon(1e-9));
    CHECK(fixture.play(trainer, i) ==
          Approx(event.at("loss").get<double>()).epsilon(kLossTolerance));
    if (event.at("update").get<bool>()) {
      CHECK(trainer.last_grad_norm(unet).item<double>() ==
            Approx(event.at("grad_norm").get<double>()).epsilon(kGradNormTolerance));
    }
  }
}

void check_end(const test::TrainerFixture& fixture, const DecoderTrainer& trainer) {
  for (int64_t number = 1; number <= trainer.num_unets(); ++number) {
    const auto u = static_cast<size_t>(number - 1);
    CHECK(trainer.steps(number) == fixture.data().json.at("steps")[u].get<int64_t>());
    if (trainer.is_trained(number)) {
      check_compact(fixture.data(),
                    fmt::format("final.{}.", u),
                    trainer.decoder()->unet(number)->named_parameters());
      check_compact(
          fixture.data(), fmt::format("ema.{}.", u), TrainerProbe::averaged(trainer, number));
    }
  }
}

// Runs of the reference's DiffusionPriorTrainer, repeated.
// Nine steps of a loop whose weights differ by kWeightTolerance.
constexpr double kSampleTolerance = 2e-3;

void check_samples(const test::PriorTrainerFixture& fixture, PriorTrainer& trainer) {
  PriorSampleOptions options;
  options.text = fixture.texts();
  const std::string before = test::bits_of(trainer);
  const auto draw = [&](bool use_non_ema) {
    options.noise = test::prior_wave_noise();
    options.timesteps = 5;
    return trainer.p_sample_loop(options, use_non_ema);
  };
  const test::Fixture& data = fixture.data();
  const at::Tensor averaged = draw(false);
  const at::Tensor live = draw(true);
  test::expect_close(averaged, data.tensor("sample.loop"), kSampleTolerance, "averaged loop");
  test::expect_close(live, data.tensor("sample.live_loop"), kSampleTolerance, "live loop");
  CHECK((test::bits_of(trainer) == before));
  CHECK(trainer.prior()->is_training());
}

/// Where a run is steep (a norm of hundreds) its last bits grow: the reference, begun with weights
/// that are rounded otherwise, is off by up to `<key>_noise` in four draws of roundings, and ours is a fifth.
void check_value(double found,
                 const nlohmann::json& event,
                 const std::string& key,
                 double relative) {
  constexpr double kNoises = 3;
  const double expected = event.at(key).get<double>();
  const double noise = event.at(key + "_noise").get<double>();
  INFO(key << ": " << found << ", by the reference " << expected << " with a noise of " << noise);
  CHECK(std::abs(found - expected) <= std::max(relative * std::abs(expected), kNoises * noise));
}

void play_from(const test::PriorTrainerFixture& fixture, PriorTrainer& trainer, size_t first) {
  for (size_t i = first; i < fixture.num_events(); ++i) {
    const nlohmann::json& event = fixture.event(i);
    INFO("event " << i << ": " << event.dump());
    if (event.at("update").get<bool>())
      CHECK(trainer.learning_rate() == Approx(event.at("lr").get<double>()).epsilon(1e-9));
    check_value(fixture.play(trainer, i), event, "loss", kLossTolerance);
    if (event.at("update").get<bool>())
      check_value(trainer.last_grad_norm().item<double>(), event, "grad_norm", kGradNormTolerance);
  }
}

void check_end(const test::PriorTrainerFixture& fixture, PriorTrainer& trainer) {
  CHECK(trainer.steps() == fixture.data().json.at("step").get<int64_t>());
  check_compact(fixture.data(), "final.", trainer.prior()->net()->named_parameters());
  check_compact(fixture.data(), "ema.", TrainerProbe::averaged(trainer));
  check_samples(fixture, trainer);
}

/// Repeats recorded runs to their end: whole, or from the reference's checkpoints on.
template <class RecordedRun>
void check_runs(const std::vector<const char*>& names, bool from_checkpoint) {
  for (const char* name : names) {
    INFO(name);
    const RecordedRun fixture(name);
    const auto trainer = fixture.trainer();
    const std::string path = fixture.checkpoint_path();
    if (from_checkpoint) trainer->load_state(read_pth(path), false, true, path);
    play_from(fixture, *trainer, from_checkpoint ? fixture.save_behind() + 1 : 0);
    check_end(fixture, *trainer);
  }
}

/// @param loop_keys those that the loop over the data set gives
template <class RecordedRun>
void check_checkpoints(const std::vector<const char*>& names,
                       const std::vector<const char*>& loop_keys,
                       const test::CheckOther& check_other = {}) {
  for (const char* name : names) {
    INFO(name);
    const RecordedRun fixture(name);
    const auto trainer = fixture.trainer();
    for (size_t i = 0; i <= fixture.save_behind(); ++i) fixture.play(*trainer, i);
    const Value theirs = read_pth(fixture.checkpoint_path());
    std::vector<std::pair<std::string, Value>> extras;
    for (const char* key : loop_keys) extras.emplace_back(key, *theirs.as_dict().find(key));
    expect_same(trainer->state(extras), theirs, name, check_other);
  }
}

TEST_CASE("a run of the reference is repeated: losses, rates, norms, weights, averages") {
  check_runs<test::TrainerFixture>({"cascade", "masked"}, false);
}

TEST_CASE("a checkpoint of the reference is loaded and its run goes on with equal losses") {
  check_runs<test::TrainerFixture>(runs_with_checkpoint<test::TrainerFixture>("masked", "cascade"),
                                   true);
}

TEST_CASE("a checkpoint has the keys, order, types and values of the reference's") {
  check_checkpoints<test::TrainerFixture>(
      runs_with_checkpoint<test::TrainerFixture>("masked", "cascade"),
      {"epoch", "sample", "next_task", "validation_losses", "samples_seen", "config"});
}

TEST_CASE("writes a run for the reference to go on with", "[.write_for_reference]") {
  test::write_runs_for_reference<test::TrainerFixture>({"cascade", "masked"},
                                                       {{"epoch", 1}, {"sample", 42}});
}

TEST_CASE("a prior's run of the reference is repeated: losses, rates, weights, averages, samples") {
  check_runs<test::PriorTrainerFixture>({"adamw", "adam"}, false);
}

TEST_CASE("a prior's checkpoint of the reference, pickled objects and all, is loaded") {
  check_runs<test::PriorTrainerFixture>({"adamw", "adam"}, true);
}

/// Checks those values that are pickled objects in theirs and plain in ours.
bool check_pickled(const Value& ours, const Value& theirs, const std::string& path) {
  if (path.ends_with("/version")) {
    CHECK(ours.is_string());
    return true;
  }
  if (path.ends_with("/warmup_scheduler") && !theirs.is_none()) {
    CHECK(ours.as_dict().find("last_step")->as_int() ==
          static_cast<int64_t>(test::PriorTrainerFixture("adamw").save_behind()));
    return true;
  }
  return false;
}

TEST_CASE("a prior's checkpoint has the keys, order, types and values of the reference's") {
  check_checkpoints<test::PriorTrainerFixture>(
      {"adamw", "adam"}, {"epoch", "samples_seen", "best_validation_loss"}, check_pickled);
}

TEST_CASE("without settings a prior's optimizer and average have the reference's") {
  const test::PriorTrainerFixture fixture("adam");
  const nlohmann::json& settings = fixture.data().json.at("settings");
  const PriorTrainConfig& config = fixture.train_config();
  CHECK(config.eps == settings.at("eps").get<double>());
  CHECK(config.betas == settings.at("betas").get<std::vector<double>>());
  CHECK(config.ema_beta == settings.at("ema_beta").get<double>());
  CHECK(config.ema_update_after_step == settings.at("ema_update_after_step").get<int64_t>());
  CHECK(config.ema_update_every == settings.at("ema_update_every").get<int64_t>());
  CHECK(settings.at("optimizer") == "Adam");
  const auto trainer = fixture.trainer();
  const Dict state = trainer->state();
  const Value& group = state.find("optimizer")->as_dict().find("param_groups")->as_sequence()[0];
  CHECK_FALSE(group.as_dict().find("decoupled_weight_decay")->as_bool());
  CHECK(group.as_dict().find("eps")->as_double() == 1e-6);
}

TEST_CASE("writes a prior's run for the reference to go on with", "[.write_for_reference]") {
  test::write_runs_for_reference<test::PriorTrainerFixture>({"adamw", "adam"},
                                                            {{"epoch", 2}, {"samples_seen", 42}});
}

}  // namespace
}  // namespace dalle2
