// SPDX-License-Identifier: MIT
// Which file a run resumes from, through whole starts: docs/resuming.md has the table.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::file;
using test::put;
using Paths = std::vector<std::string>;

struct SavedState {
  int64_t samples = 0;
  bool is_latest = true;
  bool amid_skips = false;
  std::vector<int64_t> went_back_to = {};
};

/// A run that resumes by itself; its savers' target and loader's file are latest.pth.
struct MarkedRun : test::Run {
  MarkedRun() {
    config.overwrite_data_path = true;
    auto_resume(true);
    load("latest.pth", /*only_auto_resume=*/true);
  }
  static std::string text_of(const Tracker& tracker, const SavedState& save) {
    std::string text = "run=" + tracker.run_id() + " samples=" + std::to_string(save.samples);
    for (const int64_t samples : save.went_back_to) text += " back=" + std::to_string(samples);
    return save.amid_skips ? text + " amid" : text;
  }
  static void save(Tracker& tracker, const SavedState& what) {
    const std::string text = text_of(tracker, what);
    const auto write = [&](const std::string& path) { write_file_atomically(path, text); };
    tracker.save({.is_best = !what.is_latest,
                  .is_latest = what.is_latest,
                  .amid_skips = what.amid_skips,
                  .went_back = !what.went_back_to.empty(),
                  .position = {.samples_seen = what.samples, .step = what.samples},
                  .placeholders = test::placeholders(),
                  .write_checkpoint = write,
                  .write_model = write});
  }
  /// The samples that the files of a start have seen, in its order.
  std::vector<int64_t> candidates() const {
    Tracker tracker(config, test::placeholders(), /*dummy=*/false, test::read_facts);
    tracker.init();
    return samples_of(tracker.recall_candidates());
  }
  static std::vector<int64_t> samples_of(const Paths& paths) {
    std::vector<int64_t> samples;
    for (const std::string& path : paths) samples.push_back(test::read_facts(path)->samples_seen);
    return samples;
  }
};

TEST_CASE("a newer checkpoint.pth comes before the file that the config names") {
  MarkedRun run;
  {
    Tracker tracker = run.start();
    MarkedRun::save(tracker, {.samples = 10});
    MarkedRun::save(tracker, {.samples = 20, .is_latest = false});  // a best one
  }
  CHECK(run.candidates() == std::vector<int64_t>{20, 10});
}

TEST_CASE("what a file says of itself is read once at a start") {
  MarkedRun run;
  {
    Tracker tracker = run.start();
    MarkedRun::save(tracker, {.samples = 10});
    MarkedRun::save(tracker, {.samples = 20});
    fs::copy_file("latest.pth", "copy.pth");  // not the same file any more
    fs::rename("copy.pth", "latest.pth");
  }
  std::map<std::string, int> reads;
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false, [&](const std::string& path) {
    ++reads[path];
    return test::read_facts(path);
  });
  tracker.init();
  reads.clear();
  CHECK(run.samples_of(tracker.recall_candidates()).front() == 20);
  CHECK(reads.contains("latest.pth"));
  for (const auto& [path, times] : reads) {
    INFO(path);
    CHECK(times == 1);
  }
}

TEST_CASE("a newer file at the saver's target comes before an older checkpoint.pth") {
  MarkedRun run;
  {
    Tracker tracker = run.start();
    MarkedRun::save(tracker, {.samples = 10});
    put("restored.pth", file("data/checkpoint.pth"));
    MarkedRun::save(tracker, {.samples = 20});
  }
  fs::rename("restored.pth", "data/checkpoint.pth");
  CHECK(run.candidates() == std::vector<int64_t>{20, 10});
}

TEST_CASE("a saver that fails costs a resumed run nothing") {
  MarkedRun run;
  {
    Tracker tracker = run.start();
    MarkedRun::save(tracker, {.samples = 10});
    fs::remove("latest.pth");
    fs::create_directories("latest.pth/in the way");
    MarkedRun::save(tracker, {.samples = 20});
    CHECK(run.log.count("Error saving checkpoint") == 1);
  }
  fs::remove_all("latest.pth");
  put("latest.pth", "run=" + run.start().run_id() + " samples=10");
  CHECK(run.candidates() == std::vector<int64_t>{20, 10});
}

TEST_CASE("what another run has written to a common target is neither loaded nor overwritten") {
  MarkedRun first, second;
  const test::WorkingDirectory inside(first.folder.path());
  second.config.data_path = "other";
  {
    Tracker tracker = first.start();
    MarkedRun::save(tracker, {.samples = 10});
  }
  {
    Tracker tracker = second.start();
    MarkedRun::save(tracker, {.samples = 90});
  }
  CHECK(first.candidates() == std::vector<int64_t>{10});
  Tracker tracker = first.start();
  MarkedRun::save(tracker, {.samples = 20});
  CHECK(test::read_facts("latest.pth")->samples_seen == 20);
  CHECK(test::read_facts("latest.2.pth")->samples_seen == 90);
}

TEST_CASE("a file that was saved amid skipped updates leaves the last good one in place") {
  MarkedRun run;
  Tracker tracker = run.start();
  MarkedRun::save(tracker, {.samples = 10});
  const auto back_to = [&] { return MarkedRun::samples_of(tracker.own_checkpoints()); };
  CHECK_FALSE(fs::exists("data/snapshots"));
  MarkedRun::save(tracker, {.samples = 20, .amid_skips = true});
  MarkedRun::save(tracker, {.samples = 30, .amid_skips = true});
  CHECK(test::read_facts("data/snapshots/last_good.pth")->samples_seen == 10);
  CHECK(back_to() == std::vector<int64_t>{10, 30});
  MarkedRun::save(tracker, {.samples = 10, .went_back_to = {10}});
  CHECK_FALSE(fs::exists("data/snapshots/last_good.pth"));
  CHECK(back_to() == std::vector<int64_t>{10});
}

TEST_CASE("a start amid skipped updates goes on from just there, a later roll-back does not") {
  MarkedRun run;
  {
    Tracker tracker = run.start();
    MarkedRun::save(tracker, {.samples = 10});
    MarkedRun::save(tracker, {.samples = 20, .amid_skips = true});
  }
  CHECK(run.candidates() == std::vector<int64_t>{20, 10});
  Tracker tracker = run.start();
  MarkedRun::save(tracker, {.samples = 25, .amid_skips = true});
  CHECK(MarkedRun::samples_of(tracker.own_checkpoints()) == std::vector<int64_t>{10, 25});
}

TEST_CASE("snapshots and best of a branch that a roll-back abandoned go with it") {
  MarkedRun run;
  run.config.keep_last = 5;
  {
    Tracker tracker = run.start();
    for (const int64_t samples : {10, 20, 50}) MarkedRun::save(tracker, {.samples = samples});
    MarkedRun::save(tracker, {.samples = 60, .is_latest = false});
    CHECK(test::read_facts("data/snapshots/best.pth")->samples_seen == 60);
    MarkedRun::save(tracker, {.samples = 20, .went_back_to = {20}});
    CHECK_FALSE(fs::exists("data/snapshots/best.pth"));
    MarkedRun::save(tracker, {.samples = 30, .went_back_to = {20}});
  }
  CHECK(run.candidates() == std::vector<int64_t>{30, 20, 10});
}

TEST_CASE("a copy of a run's folder resumes, under an id of its own") {
  MarkedRun run;
  std::string id;
  {
    Tracker tracker = run.start();
    id = tracker.run_id();
    MarkedRun::save(tracker, {.samples = 10});
  }
  fs::copy("data", "copy", fs::copy_options::recursive);
  MarkedRun copy;
  const test::WorkingDirectory inside(run.folder.path());
  copy.config.data_path = "copy";
  CHECK(copy.candidates() == std::vector<int64_t>{10, 10});  // latest.pth is of the run, too
  {
    Tracker tracker = copy.start();
    CHECK(tracker.run_id() != id);
    MarkedRun::save(tracker, {.samples = 40});
  }
  // The original's file at the common target is kept, and the copy's is not taken for it.
  CHECK(test::read_facts("latest.1.pth")->run_id == id);
  CHECK(run.candidates() == std::vector<int64_t>{10});
  CHECK(copy.candidates() == std::vector<int64_t>{40});
}

TEST_CASE("a copy sends nothing of the original's, and says so") {
  MarkedRun run;
  MarkedRun::save(*std::make_unique<Tracker>(run.start()), {.samples = 10});
  test::put("data/outbox/00000001.json", "{}");
  test::put("data/outbox/00000001_l.pth", "old");
  test::put("data/wandb_mark.json", "{}");
  fs::copy("data", "copy", fs::copy_options::recursive);
  MarkedRun copy;
  const test::WorkingDirectory inside(run.folder.path());
  copy.config.data_path = "copy";
  copy.start();
  CHECK(copy.log.count(
            "copy is a copy of a run's folder: it logs and saves as a run of its own; what the "
            "original had still to send is kept as outbox.1, wandb_mark.1.json") == 1);
  CHECK(fs::exists("copy/outbox.1/00000001_l.pth"));
  CHECK_FALSE(fs::exists("copy/outbox"));
  copy.start();  // a run of its own by now
  CHECK(copy.log.count("is a copy") == 1);
  run.start();
  CHECK(run.log.count("is a copy") == 0);
}

TEST_CASE("a run keeps its id over resumes, in a moved folder too") {
  MarkedRun run;
  run.load("data/checkpoint.pth", /*only_auto_resume=*/true);
  std::string id;
  {
    Tracker tracker = run.start();
    id = tracker.run_id();
    MarkedRun::save(tracker, {.samples = 10});
  }
  fs::rename("data", "moved");
  run.config.data_path = "moved";
  run.load("moved/checkpoint.pth", /*only_auto_resume=*/true);
  CHECK(run.start().run_id() == id);
  fs::remove("moved/targets.json");  // the mark says it, too
  CHECK(run.start().run_id() == id);
}

TEST_CASE("a run whose folder another one has taken over ends and writes nothing there") {
  MarkedRun run;
  Tracker tracker = run.start();
  MarkedRun::save(tracker, {.samples = 10});
  put("data/run.lock", R"({"host": "elsewhere", "pid": 1, "boot_id": "b"})");
  CHECK_THROWS_WITH(MarkedRun::save(tracker, {.samples = 20}),
                    Contains("another process has taken 'data' over"));
  CHECK_THROWS_AS(tracker.check_lock(), ConfigError);  // known from now on
  CHECK(test::read_facts("data/checkpoint.pth")->samples_seen == 10);
  CHECK(test::read_facts("latest.pth")->samples_seen == 10);
}

TEST_CASE("a picture that cannot be stored is an error in the log, and the others are stored") {
  MarkedRun run;
  Tracker tracker = run.start();
  fs::create_directories("data/images/3_Samples_0.png");  // a folder in the way
  tracker.log_images({{"first", ""}, {"second", ""}}, "Samples", 3);
  CHECK(run.log.count("Error storing a picture: ") == 1);
  CHECK(file("data/images/3_Samples_1.png") == "second");
}

}  // namespace
}  // namespace dalle2
