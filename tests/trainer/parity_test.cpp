// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "checkpoint/pth.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

// A dozen updates: Adam turns a gradient that is rounding noise about zero into a step of up to lr
// (1e-3) in either direction, so single weights may differ by that much; the losses hardly notice.
constexpr double kLossTolerance = 2e-5;
constexpr double kWeightTolerance = 1e-3;

void check_compact(const test::Fixture& fixture,
                   const std::string& prefix,
                   const torch::nn::Module& network) {
  const StateDict expected = fixture.below(prefix);
  REQUIRE_FALSE(expected.empty());
  const torch::NoGradGuard no_grad;
  const auto parameters = network.named_parameters();
  REQUIRE(parameters.size() == expected.size());
  for (const auto& [name, values] : expected) {
    const at::Tensor flat = parameters[name].flatten();
    const int64_t stride = std::max<int64_t>(1, flat.numel() / 8);
    const at::Tensor actual = at::cat(
        {flat.slice(0, 0, flat.numel(), stride).slice(0, 0, 8), flat.abs().mean().unsqueeze(0)});
    test::expect_close(actual, values, kWeightTolerance, prefix + name);
  }
}

void play_from(const test::TrainerFixture& fixture, DecoderTrainer& trainer, size_t first) {
  for (size_t i = first; i < fixture.num_events(); ++i) {
    const nlohmann::json& event = fixture.event(i);
    INFO("event " << i << ": " << event.dump());
    const int64_t unet = event.at("unet").get<int64_t>();
    if (event.at("update").get<bool>()) {
      CHECK(trainer.learning_rate(unet) == Approx(event.at("lr").get<double>()).epsilon(1e-9));
    }
    CHECK(fixture.play(trainer, i) ==
          Approx(event.at("loss").get<double>()).epsilon(kLossTolerance));
    if (event.at("update").get<bool>()) {
      CHECK(trainer.last_grad_norm(unet).item<double>() ==
            Approx(event.at("grad_norm").get<double>()).epsilon(1e-4));
    }
  }
}

void check_end(const test::TrainerFixture& fixture, const DecoderTrainer& trainer) {
  for (int64_t number = 1; number <= trainer.num_unets(); ++number) {
    const auto u = static_cast<size_t>(number - 1);
    CHECK(trainer.steps(number) == fixture.data().json.at("steps")[u].get<int64_t>());
    if (trainer.is_trained(number)) {
      check_compact(fixture.data(), fmt::format("final.{}.", u), *trainer.decoder()->unet(number));
      check_compact(fixture.data(), fmt::format("ema.{}.", u), *trainer.ema_unet(number));
    }
  }
}

TEST_CASE(
    "a run of the reference is repeated loss by loss, rates, norms, weights and averages too") {
  for (const char* name : {"cascade", "masked"}) {
    INFO(name);
    const test::TrainerFixture fixture(name);
    const auto trainer = fixture.trainer();
    play_from(fixture, *trainer, 0);
    check_end(fixture, *trainer);
  }
}

TEST_CASE("a checkpoint of the reference is taken up and its run goes on with equal losses") {
  for (const char* name : {"cascade", "masked"}) {
    INFO(name);
    const test::TrainerFixture fixture(name);
    const auto trainer = fixture.trainer();
    trainer->load_state(
        read_pth(fixture.checkpoint_path()), false, true, fixture.checkpoint_path());
    play_from(fixture, *trainer, fixture.save_behind() + 1);
    check_end(fixture, *trainer);
  }
}

/// Same keys in the same order, same types, shapes and values.
void expect_same(const Value& ours, const Value& theirs, const std::string& path) {
  INFO(path);
  REQUIRE(ours.type_name() == theirs.type_name());
  if (theirs.is_dict()) {
    const auto& a = ours.as_dict().items;
    const auto& b = theirs.as_dict().items;
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < b.size(); ++i) {
      expect_same(a[i].first, b[i].first, path + " key " + std::to_string(i));
      const std::string key =
          b[i].first.is_string() ? b[i].first.as_string() : std::to_string(b[i].first.as_int());
      expect_same(a[i].second, b[i].second, path + "/" + key);
    }
  } else if (theirs.is_list() || theirs.is_tuple()) {
    REQUIRE(ours.as_sequence().size() == theirs.as_sequence().size());
    for (size_t i = 0; i < theirs.as_sequence().size(); ++i) {
      expect_same(ours.as_sequence()[i], theirs.as_sequence()[i], path + "/" + std::to_string(i));
    }
  } else if (theirs.is_tensor()) {
    CHECK(ours.as_tensor().scalar_type() == theirs.as_tensor().scalar_type());
    test::expect_close(ours.as_tensor(), theirs.as_tensor(), kWeightTolerance, path);
  } else if (theirs.is_string()) {
    CHECK(ours.as_string() == theirs.as_string());
  } else if (theirs.is_bool()) {
    CHECK(ours.as_bool() == theirs.as_bool());
  } else if (!theirs.is_none()) {
    CHECK(ours.as_double() == Approx(theirs.as_double()).epsilon(1e-9));
  }
}

TEST_CASE(
    "a checkpoint has the keys, order, types and values of the reference's at the same place") {
  for (const char* name : {"cascade", "masked"}) {
    INFO(name);
    const test::TrainerFixture fixture(name);
    const auto trainer = fixture.trainer();
    for (size_t i = 0; i <= fixture.save_behind(); ++i) {
      fixture.play(*trainer, i);
    }
    const Value theirs = read_pth(fixture.checkpoint_path());
    std::vector<std::pair<std::string, Value>> extras;
    for (const char* key :
         {"epoch", "sample", "next_task", "validation_losses", "samples_seen", "config"}) {
      extras.emplace_back(key, *theirs.as_dict().find(key));
    }
    expect_same(trainer->state(extras), theirs, name);
  }
}

// Not a test: check_with_reference.py runs it to get a checkpoint of ours and the losses behind it.
TEST_CASE("writes a run for the reference to go on with", "[.write_for_reference]") {
  const char* folder = std::getenv("DALLE2_CHECK_DIR");
  REQUIRE(folder != nullptr);
  for (const char* name : {"cascade", "masked"}) {
    const test::TrainerFixture fixture(name);
    const auto trainer = fixture.trainer();
    nlohmann::json losses;
    for (size_t i = 0; i < fixture.num_events(); ++i) {
      losses.push_back(fixture.play(*trainer, i));
      if (i == fixture.save_behind()) {
        write_pth(fmt::format("{}/{}.pth", folder, name),
                  trainer->state({{"epoch", 1}, {"sample", 42}}));
      }
    }
    std::ofstream(fmt::format("{}/{}.json", folder, name)) << losses.dump();
  }
}

}  // namespace
}  // namespace dalle2
