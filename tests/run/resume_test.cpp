// SPDX-License-Identifier: MIT
// A toy run that is stopped, in each of its phases, and goes on: bit for bit what an uninterrupted
// run gives.
#include <catch2/catch.hpp>

#include "run/toy_support.h"
#include "support/captured_log.h"

namespace dalle2::test {
namespace {

/// What a whole run gives, and its log.
struct Outcome {
  std::string bits;
  std::vector<double> losses, validations;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(ToyRun& run, const std::string& data_path) {
  return {bits_of(run.trainer()),
          logged(data_path, "Training Loss"),
          logged(data_path, "Validation Loss")};
}

Outcome whole_run(const ToyConfig& config) {
  ToyRun run(config);
  CHECK(run.run() == ExitCode::kDone);
  return outcome_of(run, config.tracker.data_path);
}

ToyConfig variant(const std::string& folder, EmaKind kind, bool post_hoc, bool async_save) {
  ToyConfig config = toy_config(folder);
  config.train.ema.kind = kind;
  config.train.async_save = async_save;
  if (post_hoc) config.train.post_hoc_ema.save_every_n_steps = 4;
  return config;
}

TEST_CASE("a toy run learns") {
  const TempDir folder;
  const Outcome outcome = whole_run(toy_config(folder.path()));
  REQUIRE(outcome.losses.size() == 15);
  REQUIRE(outcome.validations.size() == 3);
  CHECK(outcome.validations[2] < 0.9 * outcome.validations[0]);
}

TEST_CASE("a run that has finished has nothing left to do, until its config asks for more") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  const Outcome outcome = whole_run(config);
  const auto saved_at = std::filesystem::last_write_time(folder.path() + "/out/checkpoint.pth");
  {
    const CapturedLog log;
    CHECK(whole_run(config) == outcome);
    CHECK(log.count("nothing left to do: the run has finished") == 1);
    CHECK(std::filesystem::last_write_time(folder.path() + "/out/checkpoint.pth") == saved_at);
  }
  ToyConfig other = config;
  other.train.epochs = 2;
  {
    const CapturedLog log;
    CHECK(whole_run(other) == outcome);
    CHECK(log.count("has been trained for 3 epochs and /train/epochs is 2: nothing is left to "
                    "train") > 0);
  }
  other.train.epochs = 4;
  const CapturedLog log;
  CHECK(whole_run(other).losses.size() == 20);
  CHECK(log.count("nothing left to do") == 0);
}

TEST_CASE("a record every n updates has the mean of the last n losses") {
  const TempDir each, third;
  const std::vector<double> losses = whole_run(toy_config(each.path())).losses;
  ToyConfig config = toy_config(third.path());
  config.train.log_every_n_updates = 3;
  const std::vector<double> means = whole_run(config).losses;
  REQUIRE(means.size() == 6);  // after the updates 0 and 3 of each of three epochs
  CHECK(means[0] == losses[0]);
  CHECK(means[1] == Approx((losses[1] + losses[2] + losses[3]) / 3).epsilon(1e-6));
  CHECK(means[2] == Approx((losses[3] + losses[4] + losses[5]) / 3).epsilon(1e-6));
}

TEST_CASE("a run that is stopped at any step goes on bit for bit, with both kinds of averages") {
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    for (const bool async_save : {false, true}) {
      const TempDir whole, parts;
      const Outcome expected = whole_run(variant(whole.path(), kind, true, async_save));
      const ToyConfig config = variant(parts.path(), kind, true, async_save);
      for (const int64_t last_step : {0, 4, 6, 14}) {
        ToyRun run(config);
        run_to_stop(run, last_step);
        CHECK(run.position().epoch * 5 + run.position().iteration == last_step + 1);
      }
      ToyRun last(config);
      CHECK(last.run() == ExitCode::kDone);
      CHECK(outcome_of(last, config.tracker.data_path) == expected);
    }
  }
}

TEST_CASE("a stop during a validation is reported once, and the validation is repeated") {
  const TempDir whole, parts;
  const Outcome expected = whole_run(toy_config(whole.path()));
  const ToyConfig config = toy_config(parts.path());
  // Calls: in an epoch's first or second batch. A loader throws where it hears of the signal first.
  for (const auto& [stop_at, loader_hears] :
       {std::pair{2, false}, std::pair{1, true}, std::pair{1, false}, std::pair{4, false}}) {
    StopRequest stop;
    const CapturedLog log;
    ToyRun run(config);
    int64_t calls = 0;
    run.in_validation = [&, last = stop_at, throws = loader_hears] {
      if (++calls != last) return;
      stop.make();
      if (throws) throw StoppedError("signal 15");
    };
    CHECK(run.run() == ExitCode::kStopped);
    CHECK(calls == stop_at);
    CHECK(log.count("SIGTERM: saving and stopping") == 1);
  }
  ToyRun last(config);
  CHECK(last.run() == ExitCode::kDone);
  CHECK(outcome_of(last, config.tracker.data_path) == expected);
}

TEST_CASE("averages for a choice after training are saved on the way and at the end") {
  const TempDir folder;
  const ToyConfig config = variant(folder.path(), EmaKind::ema_pytorch, true, true);
  whole_run(config);
  for (const char* name :
       {"step00000004.pth", "step00000008.pth", "step00000012.pth", "step00000015.pth"}) {
    const Value file = read_pth(config.tracker.data_path + "/averages/" + name);
    CHECK(Cursor(file).at("post_hoc_ema").at(0).at("prefix").as_string() == "toy.");
  }
}

}  // namespace
}  // namespace dalle2::test
