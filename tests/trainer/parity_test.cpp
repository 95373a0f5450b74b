// SPDX-License-Identifier: MIT
// Runs of the reference's trainers of decoders and priors, repeated.
#include <initializer_list>

#include "checkpoint/pickle/pth.h"
#include "prior_trainer_fixture.h"
#include "trainer/state/train_state.h"

namespace dalle2::test {
namespace {

// A dozen updates: Adam turns a gradient that is rounding noise about zero into a step of up to lr
// (1e-3) in either direction, so single weights may differ by that much; the losses hardly notice.
constexpr double kLossTolerance = 2e-5;
constexpr double kWeightTolerance = 1e-3;
// The norm of all gradients, at weights that differ by as much.
constexpr double kGradNormTolerance = 1e-3;
// Gradients of some weights nearly cancel, to 1e-7 of the norm: what is left carries the rounding of
// its terms. Seeds show up to 3e-3 in moments of that size; the sum of squares has twice the error.
constexpr double kMomentTolerance = 2e-2;

/// The recorded runs whose checkpoint there is: `least`, and `other` among fresh cases. The
/// repository leaves that one out, for its size.
template <class RecordedRun>
std::vector<const char*> runs_with_checkpoint(const char* least, const char* other) {
  std::vector<const char*> names = {least};
  if (std::filesystem::exists(RecordedRun(other).checkpoint_path())) names.push_back(other);
  return names;
}

/// Some values of every parameter, and its mean size.
void check_compact(const Fixture& fixture,
                   const std::string& prefix,
                   const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  const StateDict expected = fixture.below(prefix);
  REQUIRE_FALSE(expected.empty());
  const torch::NoGradGuard no_grad;
  REQUIRE(parameters.size() == expected.size());
  for (const auto& [name, values] : expected) {
    const at::Tensor flat = parameters[name].flatten();
    const int64_t stride = std::max<int64_t>(1, flat.numel() / 8);
    const at::Tensor actual = at::cat(
        {flat.slice(0, 0, flat.numel(), stride).slice(0, 0, 8), flat.abs().mean().unsqueeze(0)});
    expect_close(actual, values, kWeightTolerance, prefix + name);
  }
}

/// Checks a value that is meant to differ from theirs. @return whether it is such a value
using CheckOther =
    std::function<bool(const Value& ours, const Value& theirs, const std::string& path)>;

/// Same keys in the same order, same types, shapes and values, except where `check_other` knows
/// better.
void expect_same(const Value& ours,
                 const Value& theirs,
                 const std::string& path,
                 const CheckOther& check_other = {}) {
  INFO(path);
  if (check_other && check_other(ours, theirs, path)) return;
  REQUIRE(ours.type_name() == theirs.type_name());
  if (theirs.is_dict()) {
    const auto& a = ours.as_dict().items;
    const auto& b = theirs.as_dict().items;
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < b.size(); ++i) {
      expect_same(a[i].first, b[i].first, path + " key " + std::to_string(i));
      const std::string key =
          b[i].first.is_string() ? b[i].first.as_string() : std::to_string(b[i].first.as_int());
      expect_same(a[i].second, b[i].second, path + "/" + key, check_other);
    }
  } else if (theirs.is_list() || theirs.is_tuple()) {
    REQUIRE(ours.as_sequence().size() == theirs.as_sequence().size());
    for (size_t i = 0; i < theirs.as_sequence().size(); ++i) {
      expect_same(ours.as_sequence()[i],
                  theirs.as_sequence()[i],
                  path + "/" + std::to_string(i),
                  check_other);
    }
  } else if (theirs.is_tensor()) {
    CHECK(ours.as_tensor().scalar_type() == theirs.as_tensor().scalar_type());
    const bool moment = path.find("/exp_avg") != std::string::npos;
    const double tolerance = moment ? kMomentTolerance : kWeightTolerance;
    expect_close(ours.as_tensor(), theirs.as_tensor(), tolerance, path);
  } else if (theirs.is_string()) {
    CHECK(ours.as_string() == theirs.as_string());
  } else if (theirs.is_bool()) {
    CHECK(ours.as_bool() == theirs.as_bool());
  } else if (!theirs.is_none()) {
    CHECK(ours.as_double() == Approx(theirs.as_double()).epsilon(1e-9));
  }
}

void play_from(const TrainerFixture& fixture, DecoderTrainer& trainer, size_t first) {
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

void check_end(const TrainerFixture& fixture, const DecoderTrainer& trainer) {
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

void check_samples(const PriorTrainerFixture& fixture, PriorTrainer& trainer) {
  PriorSampleOptions options;
  options.text = fixture.texts();
  const std::string before = bits_of(trainer);
  const auto draw = [&](bool use_non_ema) {
    options.noise = prior_wave_noise();
    options.timesteps = 5;
    return trainer.p_sample_loop(options, use_non_ema);
  };
  const Fixture& data = fixture.data();
  const at::Tensor averaged = draw(false);
  const at::Tensor live = draw(true);
  expect_close(averaged, data.tensor("sample.loop"), kSampleTolerance, "averaged loop");
  expect_close(live, data.tensor("sample.live_loop"), kSampleTolerance, "live loop");
  CHECK((bits_of(trainer) == before));
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

void play_from(const PriorTrainerFixture& fixture, PriorTrainer& trainer, size_t first) {
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

void check_end(const PriorTrainerFixture& fixture, PriorTrainer& trainer) {
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
                       const CheckOther& check_other = {}) {
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
  check_runs<TrainerFixture>({"cascade", "masked"}, false);
}

TEST_CASE("a checkpoint of the reference is loaded and its run goes on with equal losses") {
  check_runs<TrainerFixture>(runs_with_checkpoint<TrainerFixture>("masked", "cascade"), true);
}

TEST_CASE("a checkpoint has the keys, order, types and values of the reference's") {
  check_checkpoints<TrainerFixture>(
      runs_with_checkpoint<TrainerFixture>("masked", "cascade"),
      {"epoch", "sample", "next_task", "validation_losses", "samples_seen", "config"});
}

// Not tests: check_with_reference.py runs them to get checkpoints of ours, and the losses that follow them.
/// Plays the recorded runs with these names. Into DALLE2_CHECK_DIR go a checkpoint of each from where
/// the recording has one, and all its losses.
template <class RecordedRun>
void write_runs_for_reference(std::initializer_list<const char*> names, const Extras& extras) {
  const char* folder = std::getenv("DALLE2_CHECK_DIR");
  REQUIRE(folder != nullptr);
  for (const char* name : names) {
    const RecordedRun recorded(name);
    const auto trainer = recorded.trainer();
    nlohmann::json losses;
    for (size_t i = 0; i < recorded.num_events(); ++i) {
      losses.push_back(recorded.play(*trainer, i));
      if (i == recorded.save_behind())
        write_pth(fmt::format("{}/{}.pth", folder, name), trainer->state(extras));
    }
    std::ofstream(fmt::format("{}/{}.json", folder, name)) << losses.dump();
  }
}

TEST_CASE("writes a run for the reference to go on with", "[.write_for_reference]") {
  write_runs_for_reference<TrainerFixture>({"cascade", "masked"}, {{"epoch", 1}, {"sample", 42}});
}

TEST_CASE("a prior's run of the reference is repeated: losses, rates, weights, averages, samples") {
  check_runs<PriorTrainerFixture>({"adamw", "adam"}, false);
}

TEST_CASE("a prior's checkpoint of the reference, pickled objects and all, is loaded") {
  check_runs<PriorTrainerFixture>({"adamw", "adam"}, true);
}

/// Checks those values that are pickled objects in theirs and plain in ours.
bool check_pickled(const Value& ours, const Value& theirs, const std::string& path) {
  if (path.ends_with("/version")) {
    CHECK(ours.is_string());
    return true;
  }
  if (path.ends_with("/warmup_scheduler") && !theirs.is_none()) {
    CHECK(ours.as_dict().find("last_step")->as_int() ==
          static_cast<int64_t>(PriorTrainerFixture("adamw").save_behind()));
    return true;
  }
  return false;
}

TEST_CASE("a prior's checkpoint has the keys, order, types and values of the reference's") {
  check_checkpoints<PriorTrainerFixture>(
      {"adamw", "adam"}, {"epoch", "samples_seen", "best_validation_loss"}, check_pickled);
}

TEST_CASE("without settings a prior's optimizer and average have the reference's") {
  const PriorTrainerFixture fixture("adam");
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
  write_runs_for_reference<PriorTrainerFixture>({"adamw", "adam"},
                                                {{"epoch", 2}, {"samples_seen", 42}});
}

}  // namespace
}  // namespace dalle2::test
