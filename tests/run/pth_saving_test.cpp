// SPDX-License-Identifier: MIT
#include "run/checkpoints/run_checkpoints.h"

#include <ATen/ATen.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/log.h"
#include "checkpoint/archive/mapped_file.h"
#include "io/files/atomic_file.h"
#include "run/joint_toy.h"
#include "support/mapped_files.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

TEST_CASE("work in the background runs beside the caller, one piece after the other") {
  std::atomic<bool> may_end = false;
  std::vector<int> order;
  PthSaving job;
  job.start(true, {}, [&](const auto&) {
    while (!may_end) std::this_thread::yield();
    order.push_back(1);
  });
  job.check();  // does not wait
  CHECK(order.empty());
  may_end = true;
  job.start(true, {}, [&](const auto&) { order.push_back(2); });  // waits for the first
  job.wait();
  CHECK(order == std::vector<int>{1, 2});
  job.wait();  // nothing to wait for
}

TEST_CASE("an error of work in the background comes to the caller once") {
  PthSaving job;
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.wait(), "disk full");
  job.wait();
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  CHECK_THROWS_WITH(job.start(true, {}, [](const auto&) {}), "disk full");
  job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  const auto check_until_thrown = [&] {
    for (int i = 0; i < 10000; ++i) {
      job.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  CHECK_THROWS_WITH(check_until_thrown(), "disk full");
}

TEST_CASE("an error that nobody asked for is logged when the job goes") {
  std::string logged;
  set_log_sink([&](LogLevel level, const std::string&, const std::string& text) {
    if (level == LogLevel::kError) logged = text;
  });
  {
    PthSaving job;
    job.start(true, {}, [](const auto&) { throw std::runtime_error("disk full"); });
  }
  set_log_sink({});
  CHECK(logged == "disk full");
}

TEST_CASE("a save in the background gives back the space of scratch files when it is over") {
  const test::TempDir folder;
  const std::string part = folder / "scratch.part", file = folder / "saved.pth";
  const at::Tensor expected = at::arange(1000, at::kFloat);
  PthSaving saving;
  std::promise<void> go_on;
  {
    ScratchFile scratch(folder / "scratch");
    scratch.append(expected);
    saving.start(/*in_background=*/true,
                 {Value(scratch.tensor({1000}, at::kFloat))},
                 [&, begin = go_on.get_future().share()](const auto& writers) {
                   begin.wait();
                   writers.front()(file);
                 });
  }
  CHECK(test::maps_removed_file(part));
  go_on.set_value();
  saving.wait();
  CHECK_FALSE(test::maps_removed_file(part));
  CHECK(at::equal(Cursor(read_pth(file)).as_tensor(), expected));
}

}  // namespace
}  // namespace dalle2

namespace dalle2::test {
namespace {

/// A run that is asked to stop during its n-th update.
class StoppedRun : public JointToyRun {
 public:
  StoppedRun(const LoadedJointToy& loaded, int64_t stop_at)
      : JointToyRun(loaded, {.quiet = true}), stop_at_(stop_at) {}

 private:
  LogRecord step_values(double samples_per_second) override {
    if (++updates_ == stop_at_) stop_.make();
    return ShardRun::step_values(samples_per_second);
  }

  StopRequest stop_;
  int64_t stop_at_;
  int64_t updates_ = 0;
};

ExitCode run_until(const std::string& path, int64_t stop_at) {
  const LoadedJointToy loaded = parse_joint_toy(read_file(path), path, {});
  StoppedRun run(loaded, stop_at);
  run.open();
  return run.run();
}

/// Names of the snapshots, which say where the run stood.
std::set<std::string> snapshots_in(const TempDir& folder, const std::string& out) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / (out + "/snapshots"))) {
    const std::string name = entry.path().filename().string();
    if (name != "best.pth") names.insert(name);
  }
  return names;
}

TEST_CASE("a stop moves no snapshot that comes after it") {
  const TempDir folder;
  const auto config_of = [&](const std::string& out) {
    const std::string path = write_joint_toy(folder, out, 1);
    auto config = nlohmann::json::parse(read_file(path));
    config["train"]["grad_accum_every"] = 1;
    config["train"]["save_every_n_samples"] = 5;
    config["tracker"]["keep_last"] = 100;
    std::ofstream(path) << config.dump();
    return path;
  };
  CHECK(run_until(config_of("whole"), 0) == ExitCode::kDone);
  const std::set<std::string> expected = snapshots_in(folder, "whole");
  REQUIRE(expected.size() == 4);  // 21 samples, 3 an update: at 6, 12, 18 and the end of the epoch
  for (int64_t stop_at = 1; stop_at <= 6; ++stop_at) {
    CAPTURE(stop_at);
    const std::string out = "stopped" + std::to_string(stop_at);
    const std::string path = config_of(out);
    CHECK(run_until(path, stop_at) == ExitCode::kStopped);
    const std::set<std::string> of_stop = snapshots_in(folder, out);
    CHECK(run_until(path, 0) == ExitCode::kDone);
    std::set<std::string> all = expected;
    all.insert(of_stop.begin(), of_stop.end());  // what the stop itself saved is one more
    CHECK(snapshots_in(folder, out) == all);
    CHECK(all.size() == expected.size() + (stop_at % 2 == 0 ? 0 : 1));
  }
}

}  // namespace
}  // namespace dalle2::test
