// SPDX-License-Identifier: MIT
// Where the snapshots of a run that is stopped lie, beside those of one that is not.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "io/files/atomic_file.h"
#include "run/joint_toy.h"

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
