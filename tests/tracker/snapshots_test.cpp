// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_record.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/broken_listing.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

using test::at;

/// Saves at 10, 20, ... `last`, and what is left in the end.
std::vector<int64_t> left_after(const SnapshotRules& rules, int64_t last) {
  std::vector<SnapshotPosition> all;
  for (int64_t samples = 10; samples <= last; samples += 10) {
    all.push_back(at(samples));
    for (const SnapshotPosition& gone : snapshots_to_remove(all, at(samples), rules)) {
      std::erase(all, gone);
    }
  }
  std::vector<int64_t> samples;
  for (const SnapshotPosition& position : all) samples.push_back(position.samples_seen);
  return samples;
}

using test::save;

std::vector<std::string> contents(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths)
    texts.push_back(std::to_string(test::read_facts(path)->samples_seen));
  return texts;
}

std::vector<std::string> kept() {
  std::vector<std::string> paths;
  for (const SnapshotPosition& position : kept_snapshots("data/snapshots"))
    paths.push_back("data/snapshots/" + snapshot_name(position));
  if (fs::exists("data/snapshots/best.pth")) paths.emplace_back("data/snapshots/best.pth");
  return contents(paths);
}

TEST_CASE("a snapshot's name says epoch, sample and step, and is read back") {
  const SnapshotPosition position{.samples_seen = 9872, .step = 1234, .epoch = 3};
  CHECK(snapshot_name(position) == "epoch0003_sample0000009872_step00001234.pth");
  CHECK(snapshot_position(snapshot_name(position)) == position);
  for (const char* other : {"best.pth",
                            "epoch0003_sample0000009872_step00001234.pth.part",
                            "epoch0003_sample_step1.pth",
                            "epoch-003_sample0000009872_step00001234.pth",
                            "checkpoint.pth"}) {
    CHECK_FALSE(snapshot_position(other));
  }
  const SnapshotPosition late{.samples_seen = int64_t{1} << 40, .step = 123456789, .epoch = 12345};
  CHECK(snapshot_position(snapshot_name(late)) == late);
}

TEST_CASE(
    "the newest snapshot and keep_last older ones are left, and each keep_every samples one") {
  using Samples = std::vector<int64_t>;
  CHECK(left_after({.keep_last = 2}, 100) == Samples{80, 90, 100});
  CHECK(left_after({.keep_last = 5}, 30) == Samples{10, 20, 30});
  CHECK(left_after({.keep_last = 1, .keep_every = 35}, 150) == Samples{40, 70, 110, 140, 150});
  CHECK(left_after({.keep_last = 0, .keep_every = 50}, 120) == Samples{50, 100, 120});
  CHECK(left_after({.keep_last = 0, .keep_every = 1}, 40) == Samples{10, 20, 30, 40});
}

TEST_CASE("a run that went back keeps what it writes though later snapshots are there") {
  const std::vector<SnapshotPosition> all = {at(10), at(40), at(50), at(60), at(20)};
  CHECK(snapshots_to_remove(all, at(20), {.keep_last = 1}) ==
        std::vector<SnapshotPosition>{at(10), at(40)});
}

TEST_CASE("saves leave the snapshots that the config asks for, and the best") {
  test::ResumingRun run;
  run.config.keep_last = 2;
  const auto tracker = run.start();
  save(*tracker, 10);
  save(*tracker, 20, /*is_best=*/true);
  for (const int64_t samples : {30, 40, 50, 60}) save(*tracker, samples);
  CHECK(kept() == std::vector<std::string>{"60", "50", "40", "20"});
  CHECK(contents({"data/snapshots/best.pth"}) == std::vector<std::string>{"20"});
  CHECK(fs::equivalent("data/checkpoint.pth", "data/snapshots/" + snapshot_name(at(60))));
}

TEST_CASE("without keep_last and keep_every there are no snapshots") {
  test::ResumingRun run;
  run.config.keep_last = 0;
  const auto tracker = run.start();
  save(*tracker, 10, /*is_best=*/true);
  CHECK_FALSE(fs::exists("data/snapshots"));
}

TEST_CASE("a snapshot that cannot be kept or removed is logged and the save goes on") {
  test::ResumingRun run;
  run.config.keep_last = 1;
  const auto tracker = run.start();
  save(*tracker, 10);
  save(*tracker, 20);
  setenv("DALLE2_FAIL_AT", "link:1:enospc", 1);
  save(*tracker, 30);
  CHECK(kept() == std::vector<std::string>{"20", "10"});  // nothing older went
  setenv("DALLE2_FAIL_AT", "unlink:1:eio", 1);
  save(*tracker, 40);
  unsetenv("DALLE2_FAIL_AT");
  CHECK(kept() == std::vector<std::string>{"40", "20", "10"});
  CHECK(contents({"latest.pth"}) == std::vector<std::string>{"40"});
  CHECK(run.log.count("Error keeping a snapshot") == 2);
  {
    const test::BrokenListing broken;
    save(*tracker, 50);
  }
  CHECK(run.log.count("snapshots: the folder cannot be read: Input/output error") == 1);
  save(*tracker, 60);
  CHECK(kept() == std::vector<std::string>{"60", "50"});  // made up for
}

}  // namespace
}  // namespace dalle2
