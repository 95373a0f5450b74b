// SPDX-License-Identifier: MIT
// What a start does to the files of an earlier run: nothing is overwritten that it did not make.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::file;
using Paths = std::vector<std::string>;

/// The usual config: auto-resume from latest.pth, which is also the target.
struct ResumingRun : test::Run {
  ResumingRun() {
    config.overwrite_data_path = true;
    auto_resume(true);
    load("latest.pth", /*only_auto_resume=*/true);
    save_to("latest.pth", "best.pth");
  }
  void save_to(const std::string& latest, const std::string& best) {
    LocalSaveConfig save;
    save.save_latest_to = latest;
    save.save_best_to = best;
    config.save = {save};
  }
  /// A start, a record, and a save of `text` as the latest and the best.
  void train(const std::string& text, bool is_best = true) const {
    Tracker tracker = start();
    save(tracker, text, is_best);
  }
  static void save(Tracker& tracker, const std::string& text, bool is_best = true) {
    tracker.log({{"run", text}}, 1);
    tracker.log_images({{text, ""}}, "Samples", 1);
    tracker.save(
        {.is_best = is_best,
         .is_latest = true,
         .position = {.samples_seen = 10, .step = 1},
         .placeholders = {{"epoch", int64_t{7}}},
         .write_checkpoint = [&](const std::string& path) { write_file_atomically(path, text); },
         .write_model = [&](const std::string& path) { write_file_atomically(path, text + "'"); }});
  }
};

TEST_CASE("a finished run whose auto_resume.json is gone keeps every file") {
  ResumingRun run;
  run.config.keep_last = 1;
  run.train("old");
  fs::remove("data/auto_resume.json");
  run.log.clear();
  run.train("new");
  CHECK(file("data/checkpoint.1.pth") == "old");
  CHECK(file("data/model.1.pth") == "old'");
  CHECK(file("data/snapshots.1/best.pth") == "old");
  CHECK_THAT(file("data/log.1.jsonl"), Contains("\n{\"run\": \"old\", \"step\": 1}"));
  CHECK(file("data/images.1/1_Samples_0.png") == "old");
  CHECK(file("latest.1.pth") == "old");
  CHECK(file("best.1.pth") == "old");
  CHECK(file("data/checkpoint.pth") == "new");
  CHECK(file("latest.pth") == "new");
  CHECK(file("best.pth") == "new");
  CHECK(
      run.log.count(
          "Starting from zero: latest.pth exists, but is loaded only when a run resumes by "
          "auto-resume (/tracker/load/only_auto_resume), and data has no auto_resume.json of such "
          "a run") == 1);
  CHECK(run.log.count(
            "data holds files of an earlier run; they are kept as checkpoint.1.pth, snapshots.1, "
            "model.1.pth, log.1.jsonl, images.1, targets.1.json\n"
            "  To resume from it instead, stop this run and set /tracker/load to {\"load_from\": "
            "\"local\", \"file_path\": \"data/checkpoint.1.pth\"}.") == 1);
  CHECK(run.log.count("best.pth is not this run's; it is kept as best.1.pth") == 1);
  CHECK(run.log.count("To resume from it instead") == 1);
}

TEST_CASE("what the line says leads back to the earlier run, and on from there") {
  ResumingRun run;
  run.train("old");
  fs::remove("data/auto_resume.json");
  run.train("mistaken");
  run.load("data/checkpoint.1.pth", /*only_auto_resume=*/false);
  {
    Tracker tracker = run.start();
    CHECK(tracker.recall_candidates() == Paths{"data/checkpoint.1.pth"});
    CHECK(tracker.own_checkpoints().empty());
    ResumingRun::save(tracker, "old, later");
  }
  CHECK(file("data/checkpoint.1.pth") == "old");
  CHECK(file("data/checkpoint.2.pth") == "mistaken");
  CHECK(file("latest.2.pth") == "mistaken");
  CHECK(file("latest.pth") == "old, later");
  // The next start goes on from what was trained since, not from where it began.
  const Tracker tracker = run.start();
  CHECK(tracker.recall_candidates() == Paths{"data/checkpoint.pth", "data/checkpoint.1.pth"});
  CHECK_FALSE(fs::exists("data/checkpoint.3.pth"));
}

TEST_CASE("one start with auto_resume off keeps every file, its mark too") {
  ResumingRun run;
  run.train("old");
  run.auto_resume(false);
  run.log.clear();
  run.train("new");
  CHECK(
      run.log.count(
          "Starting from zero: latest.pth exists, but is loaded only when a run resumes by "
          "auto-resume (/tracker/load/only_auto_resume), and /tracker/log/auto_resume is false") ==
      1);
  CHECK(file("data/checkpoint.1.pth") == "old");
  CHECK(file("latest.1.pth") == "old");
  CHECK(file("best.1.pth") == "old");
  CHECK_THAT(file("data/auto_resume.1.json"), Contains(R"("logger_type":"ConsoleLogger")"));
  CHECK_FALSE(fs::exists("data/auto_resume.json"));
  run.auto_resume(true);
  run.train("third");
  CHECK(file("data/checkpoint.2.pth") == "new");
  CHECK(file("latest.2.pth") == "new");
}

TEST_CASE("a latest.pth that was copied to a new place is not overwritten") {
  ResumingRun run;
  fs::create_directory("place");
  std::ofstream("place/latest.pth") << "copied";
  run.config.data_path = "place/data";
  run.load("place/latest.pth", /*only_auto_resume=*/true);
  run.save_to("place/latest.pth", "place/best.pth");
  // Out of the way at once: the next auto-resume must not take it for this run's.
  run.start();
  CHECK(file("place/latest.1.pth") == "copied");
  Tracker again = run.start();
  CHECK(again.recall_candidates().empty());
  ResumingRun::save(again, "new");
  CHECK(file("place/latest.pth") == "new");
  CHECK(file("place/latest.1.pth") == "copied");
}

TEST_CASE("what stands at a target stays there until the first save") {
  ResumingRun run;
  run.config.load.reset();
  std::ofstream("latest.pth") << "another's";
  Tracker tracker = run.start();
  CHECK(file("latest.pth") == "another's");
  ResumingRun::save(tracker, "first", /*is_best=*/false);
  CHECK(file("latest.1.pth") == "another's");
  ResumingRun::save(tracker, "second", /*is_best=*/false);
  CHECK(file("latest.pth") == "second");
  CHECK_FALSE(fs::exists("latest.2.pth"));
}

TEST_CASE("a run that goes on replaces its own files and no others") {
  ResumingRun run;
  run.save_to("latest_{epoch}.pth", "best.pth");
  run.load("data/checkpoint.pth", /*only_auto_resume=*/true);
  std::ofstream("best.pth") << "another's";
  run.train("first", /*is_best=*/false);
  run.log.clear();
  run.train("second");  // the first best of the run comes after a resume
  CHECK(file("latest_7.pth") == "second");
  CHECK(file("data/checkpoint.pth") == "second");
  CHECK(file("best.1.pth") == "another's");
  CHECK_FALSE(fs::exists("latest_7.1.pth"));
  CHECK_FALSE(fs::exists("data/log.1.jsonl"));
  CHECK(run.log.count("is not this run's") == 1);
}

TEST_CASE("a run that was begun before there were records goes on as it did") {
  ResumingRun run;
  run.train("first");
  fs::remove("data/targets.json");
  run.log.clear();
  run.train("second");
  CHECK(file("latest.pth") == "second");
  CHECK(file("best.pth") == "second");
  CHECK(run.log.count("earlier run") == 0);
  CHECK(run.log.count("RUN HAS BEEN AUTO-RESUMED") == 1);
  CHECK(run.log.count(LogLevel::kWarning) == 0);
}

TEST_CASE("a run that loads a checkpoint of elsewhere sets the folder's own files aside") {
  ResumingRun run;
  run.train("old");
  run.auto_resume(false);
  std::ofstream("elsewhere.pth") << "elsewhere";
  run.load("elsewhere.pth", /*only_auto_resume=*/false);
  {
    Tracker tracker = run.start();
    tracker.log({{"run", std::string("new")}}, 9);
    CHECK(test::log_text() == "{\"run\": \"new\", \"step\": 9}\n");
    ResumingRun::save(tracker, "new");
  }
  CHECK(file("data/checkpoint.1.pth") == "old");
  CHECK(file("latest.1.pth") == "old");
  CHECK(file("elsewhere.pth") == "elsewhere");
}

TEST_CASE("a run that loads its own latest file each time goes on with the log, without a mark") {
  ResumingRun run;
  run.auto_resume(false);
  run.config.load.reset();
  run.train("first");
  run.load("latest.pth", /*only_auto_resume=*/false);
  run.log.clear();
  run.train("second");
  CHECK(file("latest.pth") == "second");
  CHECK(file("data/checkpoint.pth") == "second");
  CHECK(run.log.count("earlier run") == 0);
  CHECK_THAT(file("data/log.jsonl"), Contains("\"first\"") && Contains("\"second\""));
}

TEST_CASE("a loaded file at a target may be replaced, its neighbours are another run's") {
  ResumingRun run;
  run.auto_resume(false);
  std::ofstream("latest.pth") << "loaded";
  std::ofstream("best.pth") << "neighbour";
  run.load("latest.pth", /*only_auto_resume=*/false);
  run.train("new");
  CHECK(file("latest.pth") == "new");
  CHECK_FALSE(fs::exists("latest.1.pth"));
  CHECK(file("best.1.pth") == "neighbour");
}

TEST_CASE("the base of a run that starts on it stays until its place is written to") {
  ResumingRun run;
  run.config.load.reset();
  run.train("old");
  run.load("data/checkpoint.pth", /*only_auto_resume=*/false);
  run.auto_resume(false);
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
  tracker.init();
  tracker.begin_anew("adapters on data/checkpoint.pth");
  CHECK(run.log.count("Starting from zero: adapters on data/checkpoint.pth") == 1);
  CHECK(file("data/checkpoint.pth") == "old");
  CHECK(file("data/model.1.pth") == "old'");
  CHECK(tracker.own_checkpoints().empty());
  ResumingRun::save(tracker, "new");
  CHECK(file("data/checkpoint.1.pth") == "old");
  CHECK(tracker.own_checkpoints() == Paths{"data/checkpoint.pth"});
}

TEST_CASE("auto-resume without a checkpoint left says so and sets the old log aside") {
  ResumingRun run;
  run.train("old");
  for (const char* path : {"latest.pth", "best.pth", "data/checkpoint.pth"}) fs::remove(path);
  run.log.clear();
  Tracker tracker = run.start();
  tracker.log({{"run", std::string("new")}}, 1);
  CHECK(run.log.count(
            "Starting from zero: no checkpoint of the earlier run is left (looked for latest.pth, "
            "data/checkpoint.pth, data/snapshots)") == 1);
  CHECK(run.log.count("AUTO-RESUMED") == 0);
  CHECK(run.log.count("they are kept as auto_resume.1.json, model.1.pth, log.1.jsonl, images.1") ==
        1);
  CHECK(test::log_text() == "{\"run\": \"new\", \"step\": 1}\n");
  CHECK_THAT(file("data/log.1.jsonl"), Contains("\"old\""));
  CHECK(fs::exists("data/auto_resume.json"));
}

TEST_CASE("auto-resume without a loader says that it loads nothing") {
  ResumingRun run;
  run.config.load.reset();
  run.train("old");
  run.log.clear();
  run.train("new");
  CHECK(run.log.count("Starting from zero: auto_resume.json marks an earlier run, but without "
                      "/tracker/load no checkpoint of it is loaded") == 1);
  CHECK(run.log.count("AUTO-RESUMED") == 0);
  CHECK(file("data/checkpoint.1.pth") == "old");
}

TEST_CASE("until the start is decided nothing of an earlier run is touched") {
  ResumingRun run;
  run.train("old");
  const auto listing = [] {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(".")) {
      names.push_back(entry.path().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::string> before = listing();
  for (const bool on : {true, false}) {
    run.auto_resume(on);
    Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
    tracker.check_writable();
    CHECK(listing() == before);
    tracker.init();
    CHECK(listing().size() == before.size() + 1);  // the lock
    CHECK(fs::exists("data/run.lock"));
  }
  CHECK(listing() == before);
}

TEST_CASE("what the config reads is not renamed as if an earlier run had left it") {
  ResumingRun run;
  fs::create_directories("data/images/cats");
  write_file_atomically("data/model.pth", "a CLIP");
  const auto begin_with = [&](const std::string& config) {
    Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
    tracker.init();
    tracker.add_save_metadata("config", config);
    tracker.begin_anew();
  };
  for (const char* folder : {"data/images", "data/images/cats", "data/../data/images/"}) {
    CHECK_THROWS_WITH(begin_with(fmt::format(R"({{"data": {{"folder": "{}"}}}})", folder)),
                      Contains(fmt::format("/tracker/data_path data: a run keeps images there, and "
                                           "/data/folder reads '{}'",
                                           folder)));
  }
  CHECK_THROWS_WITH(begin_with(R"({"decoder": {"clip": {"model": "data/model.pth"}}})"),
                    Contains("a run keeps model.pth there, and /decoder/clip/model reads"));
  // No run has been there: the pictures below the folder that is read are the user's.
  CHECK_THROWS_WITH(begin_with(R"({"data": {"folder": "."}})"),
                    Contains("a run keeps images there, and /data/folder reads '.'"));
  CHECK(fs::is_directory("data/images/cats"));
  write_file_atomically("data/targets.json", R"({"paths": ["images/1.png"]})");  // no run's
  CHECK_THROWS_WITH(begin_with(R"({"data": {"folder": "."}})"),
                    Contains("a run keeps images there, and /data/folder reads '.'"));
  for (const char* shards : {"data/images/{}.tar", "data/images/{000..011}.tar"}) {
    CHECK_THROWS_WITH(begin_with(fmt::format(R"({{"data": {{"url": "{}"}}}})", shards)),
                      Contains("a run keeps images there, and /data/url reads"));
  }
  fs::create_directories("elsewhere");
  fs::create_directory_symlink("../elsewhere", "data/results");
  CHECK_THROWS_WITH(begin_with(R"({"data": {"url": "elsewhere"}})"),
                    Contains("a run keeps results there, and /data/url reads"));
  fs::remove("data/results");
  // A run's own places, names of nothing and, where a run has been, the folder above are no reason.
  write_file_atomically("data/targets.json", R"({"data_path": "x", "paths": []})");
  begin_with(
      R"({"data": {"folder": ".", "x": "imagesx", "y": ""}, "train": {"results_folder": "data/results"},
          "tracker": {"load": {"file_path": "data/model.pth"}}})");
  CHECK(fs::is_directory("data/images.1/cats"));
}

TEST_CASE("a start is decided once, after init") {
  ResumingRun run;
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
  CHECK_THROWS_AS(tracker.begin_anew(), std::logic_error);
  tracker.init();
  tracker.begin_anew();
  CHECK_THROWS_AS(tracker.begin_anew(), std::logic_error);
  CHECK_THROWS_AS(tracker.go_on("latest.pth"), std::logic_error);
}

TEST_CASE(
    "while the first save writes on another thread, there is no checkpoint yet to go back to") {
  ResumingRun run;
  Tracker tracker = run.start();
  std::promise<void> writing, go_on;
  std::thread saving([&] {
    tracker.save(
        {.is_latest = true,
         .placeholders = test::placeholders(),
         .write_checkpoint =
             [&](const std::string& path) {
               writing.set_value();
               go_on.get_future().wait();
               write_file_atomically(path, "state");
             },
         .write_model = [](const std::string& path) { write_file_atomically(path, "m"); }});
  });
  writing.get_future().wait();
  CHECK(tracker.own_checkpoints().empty());
  go_on.set_value();
  saving.join();
  CHECK(tracker.own_checkpoints() == Paths{"data/checkpoint.pth"});
}

TEST_CASE("a second run in one data_path is refused, whatever it would have done") {
  ResumingRun run;
  std::optional<Tracker> first(run.start());
  Tracker second(run.config, test::placeholders(), /*dummy=*/false);
  CHECK_THROWS_WITH(second.init(), Contains("'data' is in use by process"));
  first.reset();
  CHECK_NOTHROW(second.init());
}

TEST_CASE("a config of an earlier run is kept, the same one is written over") {
  ResumingRun run;
  run.config.load.reset();
  run.auto_resume(false);
  run.start().save_config("decoder_config.json", "{\"seed\": 1}");
  run.start().save_config("decoder_config.json", "{\"seed\": 1}");
  CHECK_FALSE(fs::exists("data/decoder_config.1.json"));
  run.start().save_config("decoder_config.json", "{\"seed\": 2}");
  CHECK(file("data/decoder_config.json") == "{\"seed\": 2}");
  CHECK(file("data/decoder_config.1.json") == "{\"seed\": 1}");
}

TEST_CASE("a logger that cannot begin leaves the folder as it was") {
  ResumingRun run;
  run.train("old");
  run.load("none.pth", /*only_auto_resume=*/true);
  fs::remove_all("data/snapshots");
  fs::remove("data/checkpoint.pth");
  const std::string record = file("data/targets.json"), text = file("data/log.jsonl");
  std::ofstream("file") << "no folder";
  TensorboardLogConfig tensorboard;
  tensorboard.log_dir = "file/events";
  ConsoleLogConfig console;
  console.auto_resume = true;
  run.config.log = std::vector<LogConfig>{console, tensorboard};
  std::ofstream("data/auto_resume.json") << R"({"logger_type": "ConsoleLogger"})";
  const auto names = [] {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator("data"))
      found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  };
  const std::vector<std::string> before = names();
  CHECK_THROWS_WITH(run.start(), Contains("file/events"));
  CHECK(names() == before);
  CHECK(file("data/targets.json") == record);
  CHECK(file("data/log.jsonl") == text);
  // A new folder goes.
  run.config.data_path = "new";
  CHECK_THROWS_WITH(run.start(), Contains("file/events"));
  CHECK_FALSE(fs::exists("new"));
}

TEST_CASE("a dry run finds places that cannot be written, and leaves nothing behind") {
  const auto said = [](const std::function<void(ResumingRun&)>& change) {
    ResumingRun run;
    std::ofstream("file") << "no folder";
    fs::create_directory("folder");
    change(run);
    std::string text;
    try {
      Tracker(run.config, test::placeholders(), /*dummy=*/false).check_writable();
    } catch (const ConfigError& error) {
      text = error.what();
    }
    CHECK(std::distance(fs::directory_iterator("."), {}) == 2);
    return text;
  };
  CHECK(said([](ResumingRun&) {}).empty());
  CHECK(said([](ResumingRun& run) { run.config.data_path = "file/data"; }) ==
        "/tracker/data_path: 'file/data' cannot be written: 'file' is a file; expected a folder\n  "
        "Choose another data_path, or make that place writable for this user.");
  CHECK(said([](ResumingRun& run) { run.save_to("file/{epoch}.pth", "best.pth"); }) ==
        "/tracker/save/save_latest_to: 'file/0.pth' cannot be saved: 'file' is a file; expected a "
        "folder\n  Choose another target, or make that place writable for this user.");
  CHECK(said([](ResumingRun& run) { run.save_to("latest.pth", "folder"); }) ==
        "/tracker/save/save_best_to: 'folder' cannot be saved: 'folder' is a folder, a file is "
        "expected\n  Choose another target, or make that place writable for this user.");
  CHECK_THAT(said([](ResumingRun& run) {
               LocalSaveConfig save;
               save.save_meta_to = "file";
               run.config.save = {save};
             }),
             Catch::StartsWith("/tracker/save/save_meta_to: 'file/config.json' cannot be saved"));
}

}  // namespace
}  // namespace dalle2
