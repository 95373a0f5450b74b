// SPDX-License-Identifier: MIT
// Faults that training has no part in: the state is saved, and the run ends with the fault.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "dist/process_group.h"
#include "dist/ranks_in_threads.h"
#include "run/loop/row_run.h"
#include "run/toy_support.h"
#include "support/captured_log.h"

namespace dalle2::test {
namespace {

TEST_CASE("a network that is lost costs no step: the state is saved, then the run ends with it") {
  const TempDir whole_folder, folder;
  const ToyConfig whole_config = toy_config(whole_folder.path());
  ToyRun whole(whole_config);
  CHECK(whole.run() == ExitCode::kDone);
  const ToyConfig config = toy_config(folder.path());
  {
    ToyRun run(config);
    run.while_reading = [](int64_t step) {
      if (step == 7) throw NetworkError("the network is lost");
    };
    CHECK_THROWS_WITH(run.run(), "the network is lost");
  }
  ToyRun run(config);
  CHECK(first_step_of(run) == 7);
  CHECK(bits_of(run.trainer()) == bits_of(whole.trainer()));
}

TEST_CASE("a fault whose state cannot be saved is still the fault that is reported") {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  CapturedLog log;
  run.while_reading = [&](int64_t step) {
    if (step != 2) return;
    std::filesystem::create_directories(folder / "out/checkpoint.pth/in the way");
    throw NetworkError("the network is lost");
  };
  CHECK_THROWS_WITH(run.run(), "the network is lost");
  CHECK(log.count("the state could not be saved: ") == 1);
}

/// @return whether a run that meets a fault of this kind has left a checkpoint
template <class Fault>
bool saves_at_fault(const std::function<void(ToyRun&)>& prepare) {
  const TempDir folder;
  const ToyConfig config = toy_config(folder.path());
  ToyRun run(config);
  prepare(run);
  CHECK_THROWS_AS(run.run(), Fault);
  return std::filesystem::exists(folder / "out/checkpoint.pth");
}

TEST_CASE("a fault before the first step, one of training itself and a lost rank save nothing") {
  CHECK_FALSE(saves_at_fault<DataError>([](ToyRun& run) {
    run.while_reading = [](int64_t) { throw DataError("no usable sample"); };
  }));
  CHECK_FALSE(saves_at_fault<ResourceError>([](ToyRun& run) {
    run.before_step = [](int64_t step, at::Tensor&) {
      if (step == 2) throw ResourceError("out of memory");
    };
  }));
  // No fault from outside: without the rank the others cannot save.
  CHECK_FALSE(saves_at_fault<PeerError>([](ToyRun& run) {
    run.while_reading = [](int64_t step) {
      if (step == 2) throw PeerError("rank 1 is gone");
    };
  }));
}

struct Rows {
  int64_t rows = 0;
  int64_t size() const { return rows; }
};

TEST_CASE("a rank that cannot read its batch ends with its fault, the others stop there") {
  std::array<std::string, 2> ends;
  as_ranks(2, [&](ProcessGroup& group) {
    try {
      rank_batch<Rows>(group, 8, 0, 2, [&](int64_t, int64_t count) -> std::optional<Rows> {
        if (group.rank() == 1) throw DataError("a disk is gone");
        return Rows{count};
      });
    } catch (const Error& error) {
      ends[static_cast<size_t>(group.rank())] =
          std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  CHECK(ends[0] == "75 another rank cannot read its batch");
  CHECK(ends[1] == "3 a disk is gone");
}

}  // namespace
}  // namespace dalle2::test
