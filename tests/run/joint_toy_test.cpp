// SPDX-License-Identifier: MIT
// A kind that lives in the tests alone, through all that the kinds share.
#include <catch2/catch.hpp>

#include "checkpoint/convert.h"
#include "checkpoint/inspect.h"
#include "config/kinds.h"
#include "run/commands.h"
#include "run/joint_toy.h"
#include "run/toy_support.h"

namespace dalle2::test {
namespace {

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
  const std::string whole = write_joint_toy(folder, "whole", 3);
  CHECK(run_train(train_of(whole)) == ExitCode::kDone);
  for (const int64_t epochs : {1, 3}) {
    CHECK(run_train(train_of(write_joint_toy(folder, "parts", epochs))) == ExitCode::kDone);
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

TEST_CASE("what the shared places know of a kind comes from its row") {
  register_joint_toy();
  CHECK(config_schema("joint_toy").find("Numbers of a feature.") != std::string::npos);
  CHECK(config_schema("joint_toy").find("\"width\"") != std::string::npos);
  const TempDir folder;
  const std::string path = write_joint_toy(folder, "out", 1);
  CHECK(config_kind(path) == "joint_toy");
  CHECK_THROWS_WITH(run_train(train_of(path, {"/joint_toy/widht=3"})),
                    Catch::Matchers::Contains("did you mean"));
}

}  // namespace
}  // namespace dalle2::test
