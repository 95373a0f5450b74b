// SPDX-License-Identifier: MIT
// Files that a run stores beside its checkpoints: whose they are, and which go when they are cleared.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::file;
using test::put;

/// A run that begins anew at each start, unless it is told to resume.
struct StoringRun : test::Run {
  StoringRun() { config.overwrite_data_path = true; }
  static void store(Tracker& tracker, const std::string& path, const std::string& content) {
    tracker.store(path, [&](const std::string& to) { write_file_atomically(to, content); });
  }
  /// Begins with the files of `clears` removed.
  Tracker start_clearing(const std::set<std::string>& clears) const {
    Tracker tracker(config, test::placeholders(), /*dummy=*/false, test::read_facts);
    tracker.clear_at_start([clears](const std::string& path) {
      return clears.contains(fs::path(path).filename().string());
    });
    test::begin(tracker);
    return tracker;
  }
  static void save(Tracker& tracker) {
    const auto write = [&](const std::string& path) {
      write_file_atomically(path, "run=" + tracker.run_id() + " samples=1");
    };
    tracker.save({.is_latest = true,
                  .position = {.samples_seen = 1, .step = 1},
                  .placeholders = test::placeholders(),
                  .write_checkpoint = write,
                  .write_model = write});
  }
};

TEST_CASE("a stored file is replaced by its own run, and set aside by another") {
  StoringRun run;
  put("there/1.png", "somebody's");
  {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "there/1.png", "old");
    StoringRun::store(tracker, "there/1.png", "new");
    StoringRun::store(tracker, "data/results/1.png", "new");
  }
  CHECK(file("there/1.png") == "new");
  CHECK(file("there/1.1.png") == "somebody's");
  CHECK_FALSE(fs::exists("there/1.2.png"));
  Tracker other = run.start();
  CHECK(file("data/results.1/1.png") == "new");
  StoringRun::store(other, "there/1.png", "another run's");
  CHECK(file("there/1.2.png") == "new");
  CHECK(file("there/1.png") == "another run's");
}

TEST_CASE("a file that cannot be stored is an error in the log") {
  StoringRun run;
  Tracker tracker = run.start();
  put("a file", "");
  StoringRun::store(tracker, "a file/1.png", "content");
  tracker.log({{"loss", 1.0}}, 3);
  CHECK_THAT(file("data/log.jsonl"), Contains("Error storing a file/1.png: "));
  CHECK_THAT(file("data/log.jsonl"), Contains("\"loss\": 1"));
}

TEST_CASE("a run that begins clears what its predecessor has recorded, and is asked for") {
  StoringRun run;
  {
    Tracker tracker = run.start();
    for (const char* path : {"there/1.png", "there/2.png", "data/results/1.png"})
      StoringRun::store(tracker, path, "result");
    StoringRun::save(tracker);
  }
  put("there/3.png", "somebody's");
  {
    Tracker tracker = run.start_clearing({"1.png", "3.png", "absent.png"});
    CHECK(run.log.count("--clear-results: 2 files of the earlier run removed") == 1);
  }
  CHECK_FALSE(fs::exists("there/1.png"));
  CHECK_FALSE(fs::exists("data/results/1.png"));
  CHECK_FALSE(fs::exists("data/results.1"));
  CHECK(file("there/2.png") == "result");
  CHECK(file("there/3.png") == "somebody's");
  CHECK(fs::exists("data/checkpoint.1.pth"));
}

TEST_CASE("a run that resumes, or is refused, clears nothing") {
  StoringRun run;
  run.auto_resume(true);
  run.load("data/checkpoint.pth", /*only_auto_resume=*/true);
  {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "there/1.png", "result");
    StoringRun::save(tracker);
    CHECK_THROWS_WITH(run.start_clearing({"1.png"}), Contains("in use"));
  }
  CHECK(file("there/1.png") == "result");
  const Tracker tracker = run.start_clearing({"1.png"});
  CHECK(file("there/1.png") == "result");
  CHECK(run.log.count("--clear-results: nothing is removed") == 1);
}

TEST_CASE("weights among the results that a run begins with stay where they are") {
  StoringRun run;
  {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "data/results/vae.1.pt", "weights");
    StoringRun::store(tracker, "data/results/vae.2.pt", "others");
  }
  run.load("data/results/vae.1.pt", /*only_auto_resume=*/false);
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false, test::read_facts);
  tracker.clear_at_start([](const std::string&) { return true; });
  tracker.init();
  tracker.begin_anew("with the weights of data/results/vae.1.pt");
  CHECK(file("data/results/vae.1.pt") == "weights");
  CHECK_FALSE(fs::exists("data/results/vae.2.pt"));
  StoringRun::store(tracker, "data/results/vae.1.pt", "new");
  CHECK(file("data/results/vae.1.1.pt") == "weights");
}

TEST_CASE("the copy of a run touches no result of the original outside its folder") {
  StoringRun run;
  run.auto_resume(true);
  run.load("data/checkpoint.pth", /*only_auto_resume=*/true);
  {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "there/1.png", "original");
    StoringRun::store(tracker, "data/results/1.png", "original");
    StoringRun::save(tracker);
  }
  fs::copy("data", "copy", fs::copy_options::recursive);
  run.config.data_path = "copy";
  run.load("copy/checkpoint.pth", /*only_auto_resume=*/true);
  SECTION("when it resumes") {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "there/1.png", "copy");
    StoringRun::store(tracker, "copy/results/1.png", "copy");
    CHECK(file("there/1.1.png") == "original");
    CHECK_FALSE(fs::exists("copy/results/1.1.png"));
  }
  SECTION("when it begins anew and clears") {
    run.auto_resume(false);
    const Tracker tracker = run.start_clearing({"1.png"});
    CHECK(file("there/1.png") == "original");
    CHECK_FALSE(fs::exists("copy/results/1.png"));
    CHECK_FALSE(fs::exists("copy/results.1"));
  }
  CHECK(file("data/results/1.png") == "original");
}

}  // namespace
}  // namespace dalle2
