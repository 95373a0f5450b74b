// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "checkpoint/pickle/pth.h"
#include "parity_checks.h"
#include "runs_for_reference.h"
#include "trainer_fixture.h"
#include "trainer_probe.h"

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
    if (event.at("update").get<bool>()) {
      CHECK(trainer.learning_rate(unet) == Approx(event.at("lr").get<double>()).epsilon(1e-9));
    }
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

TEST_CASE("a checkpoint of the reference is loaded and its run goes on with equal losses") {
  for (const char* name : runs_with_checkpoint<test::TrainerFixture>("masked", "cascade")) {
    INFO(name);
    const test::TrainerFixture fixture(name);
    const auto trainer = fixture.trainer();
    trainer->load_state(
        read_pth(fixture.checkpoint_path()), false, true, fixture.checkpoint_path());
    play_from(fixture, *trainer, fixture.save_behind() + 1);
    check_end(fixture, *trainer);
  }
}

TEST_CASE(
    "a checkpoint has the keys, order, types and values of the reference's at the same place") {
  for (const char* name : runs_with_checkpoint<test::TrainerFixture>("masked", "cascade")) {
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

TEST_CASE("writes a run for the reference to go on with", "[.write_for_reference]") {
  test::write_runs_for_reference<test::TrainerFixture>({"cascade", "masked"},
                                                       {{"epoch", 1}, {"sample", 42}});
}

}  // namespace
}  // namespace dalle2
