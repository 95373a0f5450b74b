// SPDX-License-Identifier: MIT
// Files that a run stores beside its checkpoints: whose they are.
#include <catch2/catch.hpp>
#include <filesystem>

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

TEST_CASE("weights among the results that a run begins with stay where they are") {
  StoringRun run;
  {
    Tracker tracker = run.start();
    StoringRun::store(tracker, "data/results/vae.1.pt", "weights");
  }
  run.load("data/results/vae.1.pt", /*only_auto_resume=*/false);
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false, test::read_facts);
  tracker.init();
  tracker.begin_anew("with the weights of data/results/vae.1.pt");
  CHECK(file("data/results/vae.1.pt") == "weights");
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
  Tracker tracker = run.start();
  StoringRun::store(tracker, "there/1.png", "copy");
  StoringRun::store(tracker, "copy/results/1.png", "copy");
  CHECK(file("there/1.1.png") == "original");
  CHECK_FALSE(fs::exists("copy/results/1.1.png"));
  CHECK(file("data/results/1.png") == "original");
}

}  // namespace
}  // namespace dalle2
