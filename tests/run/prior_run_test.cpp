// SPDX-License-Identifier: MIT
// What a prior's run does by the clock, at a stop.
#include <catch2/catch.hpp>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/formats/npy.h"
#include "run/prior/prior_run.h"
#include "run/toy_support.h"

namespace dalle2::test {
namespace {

/// A run that is asked to stop during its n-th update.
class StoppedPrior : public PriorRun {
 public:
  StoppedPrior(const LoadedPriorConfig& loaded, int64_t stop_at)
      : PriorRun(loaded, {.quiet = true}, /*clip=*/nullptr), stop_at_(stop_at) {}

 private:
  LogRecord step_values(double samples_per_second) override {
    if (++updates_ == stop_at_) stop_.make();
    return {{"samples_per_second", samples_per_second}};
  }

  StopRequest stop_;
  int64_t stop_at_;
  int64_t updates_ = 0;
};

/// 20 pairs of embeddings, 12 of them to train on in 3 updates, with a validation after each.
LoadedPriorConfig tiny_prior(const TempDir& folder, const std::string& out) {
  constexpr int64_t kRows = 20, kWidth = 4;
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kWidth; ++i) values.push_back(static_cast<float>(i % 7) - 3);
  for (const char* name : {"images", "texts"}) {
    std::filesystem::create_directories(folder / name);
    write_npy_float32((folder / name) + "/0.npy", {kRows, kWidth}, values.data());
  }
  const nlohmann::json config = {
      {"prior",
       {{"net",
         {{"dim", kWidth}, {"depth", 1}, {"dim_head", 4}, {"heads", 1}, {"max_text_len", 1}}},
        {"image_embed_dim", kWidth},
        {"condition_on_text_encodings", false},
        {"timesteps", 10},
        {"sample_timesteps", 2}}},
      {"data",
       {{"image_url", folder / "images"},
        {"text_url", folder / "texts"},
        {"batch_size", 4},
        {"eval_every_seconds", 0},
        {"splits", {{"train", 0.6}, {"val", 0.2}, {"test", 0.2}}}}},
      {"train",
       {{"epochs", 1},
        {"device", "cpu"},
        {"use_ema", false},
        {"log_every_n_updates", 1},
        {"eval_timesteps", {2}}}},
      {"tracker",
       {{"data_path", folder / out},
        {"log", {{"log_type", "console"}, {"auto_resume", true}}},
        {"save", {{"save_to", "local"}, {"save_latest_to", folder / (out + "/latest.pth")}}}}}};
  return parse_prior_config(config.dump(), "test.json", {});
}

ExitCode run_until(const LoadedPriorConfig& loaded, int64_t stop_at) {
  StoppedPrior run(loaded, stop_at);
  run.open();
  return run.run();
}

size_t validations(const std::string& data_path) {
  return logged(data_path, "tracking/validation length (minutes)").size();
}

TEST_CASE("a validation that is due at a stop is made by the start that resumes") {
  const TempDir folder;
  const LoadedPriorConfig whole = tiny_prior(folder, "whole"), stopped = tiny_prior(folder, "out");
  CHECK(run_until(whole, 0) == ExitCode::kDone);
  const size_t expected = validations(folder / "whole");
  REQUIRE(expected == 4);  // one of them after the last epoch
  CHECK(run_until(stopped, 2) == ExitCode::kStopped);
  CHECK(validations(folder / "out") == 1);
  CHECK(run_until(stopped, 0) == ExitCode::kDone);
  CHECK(validations(folder / "out") == expected);
}

}  // namespace
}  // namespace dalle2::test
