// SPDX-License-Identifier: MIT
// Updates that are skipped in a toy run: reported, given up on, rolled back.

#include "base/error.h"
#include "run/toy_support.h"
#include "support/captured_log.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

/// Spoils the batches of the steps from `first` to `last`, in the first `times` passes over them.
auto spoil(int64_t first, int64_t last, int64_t times = 1000) {
  return [first, last, left = times * (last - first + 1)](int64_t step, at::Tensor& batch) mutable {
    if (step < first || step > last || left == 0) return;
    --left;
    batch.fill_(NAN);
  };
}

TEST_CASE("a skipped update is reported, counted and leaves no trace in the weights") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  run.before_step = spoil(4, 6);
  CapturedLog log;
  CHECK(run.run() == ExitCode::kDone);
  CHECK(run.trainer().skipped_updates() == SkippedUpdates{3, 0});
  CHECK(run.trainer().steps() == 12);
  CHECK(log.count("an update was skipped, because its loss or gradient is not finite; 1 skipped") >
        0);
  CHECK(log.count("2 skipped so far") > 0);
  CHECK(log.count("3 skipped so far") == 0);  // told when their number has doubled
  CHECK(logged(folder / "out", "Skipped Updates").back() == 3);
  CHECK(logged(folder / "out", "Losses Not Finite") == std::vector<double>{1, 1, 1});
}

TEST_CASE("a run gives up after too many, and says correctly whether there is a checkpoint") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  config.train.non_finite.after = 2;
  {
    ToyConfig rolling = config;
    rolling.train.non_finite.action = NonFiniteAction::roll_back;
    ToyRun run(rolling);
    run.before_step = spoil(0, 100);
    CHECK_THROWS_WITH(run.run(),
                      Contains("the last 2 updates were skipped") &&
                          Contains("there is no checkpoint of this run to go back to") &&
                          Contains("Nothing was saved.") && Contains("odd numbers"));
  }
  // The save after step 3 may still be under way when the next updates are skipped.
  ToyRun run(config);
  run.before_step = spoil(3, 100);
  CHECK_THROWS_WITH(run.run(),
                    Contains("The checkpoints hold finite weights: run the command again with "
                             "--back-to " +
                             (folder / "out/")));
  CHECK(std::filesystem::exists(folder / "out/checkpoint.pth"));
}

TEST_CASE("a run goes back to its last checkpoint with a lower rate, and no further than allowed") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  config.train.non_finite.after = 2;
  config.train.non_finite.action = NonFiniteAction::roll_back;
  config.train.non_finite.max_roll_backs = 2;
  config.train.post_hoc_ema.save_every_n_steps = 1;
  {
    ToyRun run(config);
    run.before_step = spoil(6, 7, /*times=*/1);
    CapturedLog log;
    CHECK(run.run() == ExitCode::kDone);
    CHECK(log.count("going back to the last checkpoint, 1 of 2 times") > 0);
    CHECK(run.checkpoints().roll_backs() == 1);
    CHECK(run.trainer().learning_rate_factor() == 0.5);
    CHECK(run.trainer().steps() == 15);
    CHECK(run.trainer().skipped_updates() == SkippedUpdates{2, 0});
    CHECK(run.epochs_opened == 4);  // the second one again
    CHECK(run.epochs_closed == run.epochs_opened);
  }
  {
    ToyConfig more = config;  // what happened stays known after a start
    more.train.epochs = 4;
    ToyRun run(more);
    CHECK(run.run() == ExitCode::kDone);
    CHECK(run.checkpoints().roll_backs() == 1);
    CHECK(run.trainer().learning_rate_factor() == 0.5);
    CHECK(run.trainer().learning_rate() == Approx(2.5e-2));
  }
  ToyConfig last = config;
  last.train.epochs = 6;
  ToyRun run(last);
  run.before_step = spoil(21, 100);
  CHECK_THROWS_AS(run.run(), NonFiniteError);
  CHECK(run.checkpoints().roll_backs() == 2);
}

TEST_CASE("a run that goes back to before an allowed change takes the change again") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  {
    ToyRun run(config);
    run.checkpoints().set_data_size({20, "row"});
    run_to_stop(run, 8);
  }
  config.train.allow_changed_config = true;
  config.train.non_finite.after = 2;
  config.train.non_finite.action = NonFiniteAction::roll_back;
  ToyRun run(config);
  run.checkpoints().set_data_size({21, "row"});
  std::vector<int64_t> steps;
  run.before_step = [&, spoils = spoil(5, 6, /*times=*/1)](int64_t step,
                                                           at::Tensor& batch) mutable {
    steps.push_back(step);
    spoils(step, batch);
  };
  CHECK(run.run() == ExitCode::kDone);
  const size_t heard_after = run.session().device().is_cpu() ? 2 : 3;
  REQUIRE(steps.size() > heard_after);
  CHECK(steps[0] == 5);            // the epoch starts over, as the data set is another one,
  CHECK(steps[heard_after] == 5);  // and so it does behind the file that knows the old one
}

TEST_CASE("averages from after the point a run went back to are abandoned") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  config.train.epochs = 1;
  config.train.non_finite.after = 1;
  config.train.non_finite.action = NonFiniteAction::roll_back;
  config.train.post_hoc_ema.save_every_n_steps = 1;
  config.save_every_n_steps = 2;
  ToyRun run(config);
  bool step_3_was_there = false;
  run.before_step = [&, left = 1](int64_t step, at::Tensor& batch) mutable {
    if (step != 3 || left == 0) return;
    --left;
    batch.fill_(NAN);
    run.checkpoints().wait();
    step_3_was_there = std::filesystem::exists(folder / "out/averages/step00000003.pth");
  };
  CapturedLog log;
  CHECK(run.run() == ExitCode::kDone);
  CHECK(step_3_was_there);
  CHECK(log.count("going back to the last checkpoint") > 0);
  CHECK(std::filesystem::exists(folder / "out/averages/step00000005.pth"));
  CHECK(std::filesystem::exists(folder / "out/abandoned/step00000003.pth"));
}

TEST_CASE("a state with NaN in it is never saved") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  run.before_step = [&](int64_t step, at::Tensor&) {
    const torch::NoGradGuard no_grad;
    if (step == 2) run.trainer().toy().network->to_q->weight.fill_(NAN);
  };
  CHECK_THROWS_WITH(run.run(), Contains("the weights are not finite (epoch 0, sample 0)"));
  CHECK_FALSE(std::filesystem::exists(folder / "out/checkpoint.pth"));
}

TEST_CASE("a run that stopped amid skipped updates resumes there, and goes back to before them") {
  const TempDir folder;
  ToyConfig config = toy_config(folder.path());
  config.train.non_finite.after = 3;
  config.train.non_finite.action = NonFiniteAction::roll_back;
  {
    StopRequest stop;
    ToyRun run(config);  // saves after step 3, and is stopped after two skipped updates
    run.before_step = [&](int64_t step, at::Tensor& batch) {
      if (step >= 3) batch.fill_(NAN);
      if (step == 4) stop.make();
    };
    CHECK(run.run() == ExitCode::kStopped);
  }
  ToyRun run(config);
  CapturedLog log;
  std::vector<int64_t> steps;
  run.before_step = [&](int64_t step, at::Tensor& batch) {
    steps.push_back(step);
    if (steps.size() == 1) batch.fill_(NAN);  // the third in a row
  };
  CHECK(run.run() == ExitCode::kDone);
  // On a GPU the host learns of a skipped update when the next one has been made.
  const size_t heard_after = run.session().device().is_cpu() ? 1 : 2;
  REQUIRE(steps.size() > 2);
  CHECK(steps[0] == 5);            // where it was stopped
  CHECK(steps[heard_after] == 3);  // of the snapshot from before them
  CHECK(run.checkpoints().roll_backs() == 1);
}

}  // namespace
}  // namespace dalle2::test
