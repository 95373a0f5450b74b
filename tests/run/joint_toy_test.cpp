// SPDX-License-Identifier: MIT
// A kind that lives in the tests alone, through all that the kinds share.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/convert.h"
#include "checkpoint/fsck.h"
#include "config/kinds.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/joint_toy.h"
#include "run/tiny_decoder.h"
#include "run/toy_support.h"

namespace dalle2::test {
namespace {

/// @return where it was written
std::string write_config(const TempDir& folder, const std::string& out, int64_t epochs) {
  nlohmann::json config = tiny_decoder_config(folder.path(), out);
  config.erase("decoder");
  config.erase("evaluate");
  config["joint_toy"] = {{"width", 4}};
  config["train"] = {{"epochs", epochs}, {"log_every_n_updates", 1}, {"grad_accum_every", 2}};
  config["tracker"]["log"]["auto_resume"] = true;
  config["tracker"]["load"] = {{"load_from", "local"},
                               {"file_path", folder / (out + "/checkpoint.pth")},
                               {"only_auto_resume", true}};
  const std::string path = folder / (out + ".json");
  std::ofstream(path) << config.dump();
  return path;
}

TrainCommand train_of(const std::string& path, const std::vector<std::string>& overrides = {}) {
  return {.config_path = path, .overrides = overrides, .quiet = true};
}

StateDict model_in(const TempDir& folder, const std::string& out) {
  const Value checkpoint = read_checkpoint(folder / (out + "/checkpoint.pth"));
  return Cursor(checkpoint, out).at("model").as_state_dict();
}

TEST_CASE("a row makes a kind that trains on shards and resumes bit for bit") {
  register_joint_toy();
  const TempDir folder;
  const std::string whole = write_config(folder, "whole", 3);
  CHECK(run_train(train_of(whole)) == ExitCode::kDone);
  for (const int64_t epochs : {1, 3}) {
    CHECK(run_train(train_of(write_config(folder, "parts", epochs))) == ExitCode::kDone);
  }
  const StateDict expected = model_in(folder, "whole"), found = model_in(folder, "parts");
  REQUIRE(expected.size() == 5);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(at::equal(expected[i].second, found[i].second));
  }
  const std::vector<double> losses = logged(folder / "whole", "Validation Loss");
  REQUIRE(losses.size() == 3);
  CHECK(losses.back() < losses.front());
  const CheckedFile checked = check_file(folder / "whole/checkpoint.pth");
  CHECK(checked.resume == Resume::kExact);
  CHECK_THAT(checked.missing, Catch::Matchers::Equals(std::vector<std::string>{}));
  CHECK_THAT(checked.faults, Catch::Matchers::Equals(std::vector<std::string>{}));
  TrainCommand dry = train_of(whole, {"/tracker/data_path=" + (folder / "dry")});
  dry.dry_run = true;
  CHECK(run_train(dry) == ExitCode::kDone);
}

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
  run.read_examples();
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
    const std::string path = write_config(folder, out, 1);
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

TEST_CASE("what the shared places know of a kind comes from its row") {
  register_joint_toy();
  CHECK(config_docs().find("Numbers of a feature.") != std::string::npos);
  CHECK(config_schema("joint_toy").find("\"width\"") != std::string::npos);
  const TempDir folder;
  const std::string path = write_config(folder, "out", 1);
  CHECK(config_kind(path) == "joint_toy");
  CHECK_THROWS_WITH(run_train(train_of(path, {"/joint_toy/widht=3"})),
                    Catch::Matchers::Contains("did you mean"));
  // Only a VAE has a folder of results.
  TrainCommand clears = train_of(path);
  clears.clear_results = true;
  CHECK_THROWS_WITH(run_train(clears), Catch::Matchers::Contains("--clear-results"));
}

}  // namespace
}  // namespace dalle2::test
