// SPDX-License-Identifier: MIT
#include "dist/rank_launcher.h"

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

TEST_CASE("the exit code of a run is that of the rank that failed by itself") {
  CHECK(exit_code_of({{0, 0, 0}, {1, 0, 0}}) == ExitCode::kDone);
  CHECK(exit_code_of({{0, 75, 0}, {1, 75, 0}}) == ExitCode::kStopped);
  CHECK(exit_code_of({{0, 6, 0}, {1, 3, 0}}) == ExitCode::kData);
  CHECK(exit_code_of({{1, 4, 0}, {0, 3, 0}}) == ExitCode::kNonFinite);
  CHECK(exit_code_of({{1, 0, 9}, {0, 6, 0}}) == ExitCode::kNetwork);
  CHECK(exit_code_of({{1, 0, 9}, {0, 75, 0}}) == ExitCode::kNetwork);
}

}  // namespace
}  // namespace dalle2
