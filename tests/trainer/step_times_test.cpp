// SPDX-License-Identifier: MIT
#include "trainer/step_times.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "trainer_fixture.h"

namespace dalle2 {
namespace {

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
  const test::TrainerFixture fixture("cascade");
  DecoderTrainConfig config = fixture.train_config();
  config.max_batch_size = 2;
  const auto trainer = fixture.trainer(config);
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
}  // namespace dalle2
