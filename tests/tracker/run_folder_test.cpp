// SPDX-License-Identifier: MIT
// The sentences of docs/resuming.md, with the files of a run: what a start finds, what it leaves, and what it writes
// outside of its folder.
#include "tracker/run_folder/run_folder.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/clean_environment.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::file;
using test::put;
using test::record_of;
using test::ResumingRun;
using test::Run;
using test::save;
using test::without_times;

std::string files_of(Tracker& tracker) {
  std::string all;
  for (const std::string& path : tracker.open().files) all += path + " ";
  return all;
}

TEST_CASE("a start writes run.json before it logs, and has an id, a token and a home") {
  const test::CleanEnvironment environment({"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"});
  test::CleanEnvironment::set("SLURM_JOB_ID", "4711");
  Run run;
  const auto tracker = run.start();
  const nlohmann::json record = record_of();
  CHECK(record["id"] == tracker->run_id());
  CHECK(record["token"] != record["id"]);
  CHECK(record["job"] == "slurm 4711");
  CHECK(record["home"] == fs::canonical("data").string());
  CHECK(record["began_from"] == "");
  CHECK(record["has_saved"] == false);
  CHECK(record["was_empty"] == true);
  tracker->log({{"loss", 0.5}}, 3);
  CHECK(without_times(file("data/log.jsonl")) ==
        "{\"run_id\": \"" + tracker->run_id() + "\", \"step\": 3}\n{\"loss\": 0.5, \"step\": 3}\n");
  save(*tracker, 10);
  CHECK(record_of()["has_saved"] == true);
  tracker->finish_as("everything");
  CHECK(record_of()["finished"] == "everything");
}

TEST_CASE("a refused start leaves the lock alone, and the next one begins in it") {
  Run run;
  put("latest.pth", "somebody's");
  CHECK_THROWS_WITH(run.start(), Contains("/tracker/save: a file lies there"));
  CHECK(fs::exists("data/run.lock"));
  CHECK_FALSE(fs::exists("data/run.json"));
  fs::remove("latest.pth");
  CHECK_NOTHROW(run.start());
}

TEST_CASE("a folder without run.json that holds what a run would write is refused by name") {
  for (const char* name : {"checkpoint.pth", "log.jsonl", "decoder_config.json", "images/1.png"}) {
    CAPTURE(name);
    Run run;
    put(std::string("data/") + name, "somebody's");
    put("data/notes.txt", "mine");
    CHECK_THROWS_AS(run.start(), ConfigError);
    const std::string first = fs::path(name).begin()->string();
    CHECK_THROWS_WITH(
        run.start(),
        Contains("has no run.json, and holds what a run would write: " + first + "\n"));
    fs::remove_all("data/" + first);
    run.start();
    CHECK(file("data/notes.txt") == "mine");
    CHECK(record_of()["was_empty"] == false);
  }
}

TEST_CASE("with auto_resume a checkpoint makes its folder a run, under the id in it") {
  ResumingRun run;
  put("data/checkpoint.pth", "run=an-id samples=30");
  put("data/images/1.png", "drawn");
  {
    Tracker tracker(run.config, test::placeholders(), false, test::read_facts);
    CHECK(tracker.open().action == StartAction::kAdopt);
    CHECK(files_of(tracker) == "data/checkpoint.pth ");
  }
  CHECK(run.start()->run_id() == "an-id");
  CHECK(file("data/images/1.png") == "drawn");
  ResumingRun other;
  put("data/checkpoint.pth", "damaged");
  CHECK_THROWS_WITH(other.start(), Contains("holds what a run would write: checkpoint.pth"));
}

TEST_CASE("a run that has saved nothing begins again in place, under its id, with any config") {
  for (const bool overwrite : {false, true}) {
    Run run;
    run.config.overwrite_data_path = overwrite;
    std::string id, token;
    {
      const auto first = run.start();
      first->log({{"loss", 0.5}}, 1);
      id = first->run_id();
      token = record_of()["token"];
    }
    run.auto_resume(overwrite);
    const auto second = run.start();
    CHECK(second->run_id() == id);
    CHECK(record_of()["token"] != token);
    second->log({{"loss", 0.25}}, 1);
    CHECK(read_run_log("data/log.jsonl").series.at(0).values == std::vector<double>{0.25});
    CHECK_FALSE(fs::exists("data.1"));
  }
}

TEST_CASE("a kill between the first checkpoint and its note loses nothing") {
  ResumingRun run;
  run.saved(10);
  nlohmann::json record = record_of();
  record["has_saved"] = false;
  put("data/run.json", record.dump());
  Tracker tracker(run.config, test::placeholders(), false, test::read_facts);
  CHECK(tracker.open().action == StartAction::kResume);
}

TEST_CASE("a new run in the folder of another sets the whole folder aside in one rename") {
  Run run;
  run.config.overwrite_data_path = true;
  run.save_latest_to("data/latest.pth");
  for (const int64_t samples : {10, 20, 30}) save(*run.start(), samples);
  CHECK_THAT(file("data.1/latest.pth"), Contains("samples=10 "));
  CHECK_THAT(file("data.2/checkpoint.pth"), Contains("samples=20 "));
  CHECK_THAT(file("data/checkpoint.pth"), Contains("samples=30 "));
  CHECK(record_of()["id"] != record_of("data.1")["id"]);
  CHECK(run.log.count("data is set aside as ") == 2);
  run.config.overwrite_data_path = false;
  CHECK_THROWS_WITH(run.start(),
                    Contains("the folder data exists and holds a run") && Contains("--fresh"));
}

TEST_CASE("--fresh sets a run aside that would resume, and once only in a job that is restarted") {
  const test::CleanEnvironment environment(
      {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"});
  ResumingRun run;
  run.save_latest_to("{epoch}/latest.pth");
  test::CleanEnvironment::set("SLURM_JOB_ID", "1");
  save(*run.start(), 10);
  fs::remove_all("0");
  save(*run.start(false, {.fresh = true}), 20);
  CHECK(fs::exists("data.1"));
  test::CleanEnvironment::set("SLURM_RESTART_COUNT", "1");
  save(*run.start(false, {.fresh = true}), 30);  // the job's second start resumes
  CHECK_FALSE(fs::exists("data.2"));
  test::CleanEnvironment::set("SLURM_JOB_ID", "2");
  fs::remove_all("0");
  run.start(false, {.fresh = true});  // another job's restart
  CHECK(fs::exists("data.2"));
}

TEST_CASE(
    "a run that resumes tries its checkpoint, then its snapshots, then the file that it saved") {
  ResumingRun run;
  run.config.keep_last = 2;
  run.saved(30);
  run.load("latest.pth", /*only_auto_resume=*/true);
  Tracker tracker(run.config, test::placeholders(), false, test::read_facts);
  CHECK(tracker.open().action == StartAction::kResume);
  CHECK(files_of(tracker) == "data/checkpoint.pth data/snapshots/" + snapshot_name(test::at(20)) +
                                 " data/snapshots/" + snapshot_name(test::at(10)) + " latest.pth ");
}

TEST_CASE("a run whose files are all damaged or gone ends with exit 3, and names what is intact") {
  ResumingRun run;
  run.saved(20);
  fs::remove("data/checkpoint.pth");
  fs::remove_all("data/snapshots");
  CHECK_THROWS_AS(run.start(), DataError);
  CHECK_THROWS_WITH(run.start(),
                    Contains("Copy one of these to data/checkpoint.pth") && Contains("latest.pth"));
  put("data/checkpoint.pth", "damaged");
  fs::remove("latest.pth");
  CHECK_THROWS_WITH(run.start(), Contains("No fixed target of a saver on this machine has a copy"));
  // The file of /tracker/load takes its place if this run saved it.
  put("kept.pth", "run=" + record_of()["id"].get<std::string>() + " samples=20");
  run.load("kept.pth", /*only_auto_resume=*/true);
  CHECK_NOTHROW(run.start());
  put("kept.pth", "run=another samples=20");
  CHECK_THROWS_AS(run.start(), DataError);
}

TEST_CASE("/tracker/load that names neither a file of the run nor what it began from is refused") {
  ResumingRun run;
  put("base.pth", "run=another samples=5");
  put("other.pth", "run=another samples=6");
  run.load("base.pth", /*only_auto_resume=*/false);
  {
    const auto first = run.start();
    CHECK(record_of()["began_from"] == fs::absolute("base.pth").string());
    save(*first, 10);
  }
  CHECK_NOTHROW(run.start());  // what it began from
  run.load("latest.pth", false);
  CHECK_NOTHROW(run.start());  // a file that it saved
  run.load("data/checkpoint.pth", false);
  CHECK_NOTHROW(run.start());
  run.load("other.pth", false);
  CHECK_THROWS_WITH(run.start(),
                    Contains("/tracker/load: ") &&
                        Contains("other.pth is neither a file of the run in data") &&
                        Contains("leave /tracker/load out") && Contains("use --fresh"));
  run.load("other.pth", true);
  CHECK_NOTHROW(run.start());
}

TEST_CASE("a file to load inside a folder that would be set aside is refused") {
  Run run;
  run.config.overwrite_data_path = true;
  save(*run.start(), 10);
  run.load("data/checkpoint.pth", /*only_auto_resume=*/false);
  CHECK_THROWS_WITH(run.start(),
                    Contains("lies in data_path data, which a new run would set aside"));
  CHECK_FALSE(fs::exists("data.1"));
}

TEST_CASE("a folder that holds more than its run is not set aside") {
  const auto refused = [](const std::string& why, const auto& change) {
    Run run;
    run.config.overwrite_data_path = true;
    StartOptions options;
    change(options, /*before=*/true);
    save(*run.start(), 10);
    fs::remove("latest.pth");
    change(options, /*before=*/false);
    Tracker tracker(run.config, test::placeholders(), false, test::read_facts, options);
    CHECK_THROWS_WITH(tracker.open(),
                      Contains("cannot be set aside as a whole: ") && Contains(why) &&
                          Contains("mkdir ") &&
                          Contains("choose another", Catch::CaseSensitive::No));
    CHECK_FALSE(fs::exists("data.1"));
  };
  refused("it held other files when its run began", [](auto&, bool before) {
    if (before) put("data/notes.txt", "mine");
  });
  refused("the config data/my.json lies in it", [](auto& options, bool before) {
    if (!before) put("data/my.json", "{}");
    options.config_path = "data/my.json";
  });
  refused("/data names file:data/shards/{0..9}.tar in it", [](auto& options, bool) {
    options.data = {"", "resampled", "https://host/data", "file:data/shards/{0..9}.tar"};
  });
  refused("is another run", [](auto&, bool before) {
    if (!before) put("data/below/run.json", "{}");
  });
  refused("the working directory lies in it", [](auto&, bool before) {
    if (before) return;
    // The same folder by a link: links are resolved first.
    fs::create_directory("data/inside");
    fs::current_path("data/inside");
    fs::create_directory_symlink("..", "data");
  });
}

TEST_CASE("a rename that fails is refused with the way out, and nothing has changed") {
  Run run;
  run.config.overwrite_data_path = true;
  run.save_latest_to("data/latest.pth");
  save(*run.start(), 10);
  const std::string before = file("data/run.json");
  ::setenv("DALLE2_FAIL_AT", "rename:1:eio", 1);
  CHECK_THROWS_WITH(run.start(),
                    Contains("cannot be set aside as a whole: ") &&
                        Contains("cannot rename it to ") && Contains("mkdir "));
  ::unsetenv("DALLE2_FAIL_AT");
  CHECK(file("data/run.json") == before);
  CHECK_FALSE(fs::exists("data.1"));
}

TEST_CASE("--back-to makes a snapshot the checkpoint and moves what is newer to abandoned") {
  ResumingRun run;
  run.config.keep_last = 5;
  std::string log_before;
  {
    const auto tracker = run.start();
    for (int64_t seen = 10; seen <= 40; seen += 10) {
      tracker->log({{"loss", 1.0}}, seen / 10);
      save(*tracker, seen, /*is_best=*/seen == 30);
      put("data/averages/" + averages_name(seen / 10), "averages");
    }
  }
  const std::string back = "data/snapshots/" + snapshot_name(test::at(20));
  for (const char* wrong : {"data/absent.pth", "elsewhere.pth"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(run.start(false, {.back_to = wrong}),
                      Contains("--back-to") && Contains("fsck data"));
  }
  CHECK_THROWS_AS(run.start(false, {.fresh = true, .back_to = back}), ConfigError);
  run.auto_resume(false);  // whatever it says
  const auto tracker = run.start(false, {.back_to = back});
  CHECK_THAT(file("data/checkpoint.pth"), Contains("samples=20 "));
  CHECK(fs::exists("data/snapshots/" + snapshot_name(test::at(10))));
  CHECK(fs::exists(back));
  for (const std::string& name : {snapshot_name(test::at(30)),
                                  snapshot_name(test::at(40)),
                                  std::string("best.pth"),
                                  averages_name(3),
                                  averages_name(4)}) {
    CAPTURE(name);
    CHECK(fs::exists("data/abandoned/" + name));
    CHECK_FALSE(fs::exists("data/snapshots/" + name));
  }
  CHECK(fs::exists("data/averages/" + averages_name(2)));
  tracker->log({{"loss", 0.5}}, 3);
  CHECK(read_run_log("data/log.jsonl").series.at(0).values == std::vector<double>{1.0, 1.0, 0.5});
  // Names that are taken are numbered.
  save(*tracker, 30);
  tracker->go_back(test::loaded(back));
  CHECK(fs::exists("data/abandoned/" + snapshot_name(test::at(30)) + ".1"));
  CHECK_THAT(file("data/checkpoint.pth"), Contains("samples=20 "));
}

TEST_CASE("--back-to is done in a job that is restarted, and loses no state that no snapshot has") {
  const test::CleanEnvironment environment({"SLURM_JOB_ID", "SLURM_RESTART_COUNT"});
  test::CleanEnvironment::set("SLURM_JOB_ID", "1");
  ResumingRun run;
  run.config.keep_last = 5;
  {
    const auto tracker = run.start();
    save(*tracker, 10);
    save(*tracker, 20);
    save(*tracker, 30, false, /*amid_skips=*/true);  // becomes no snapshot
    fs::remove("latest.pth");
    tracker->finish_as("everything");
  }
  const StartOptions back{.back_to = "data/snapshots/" + snapshot_name(test::at(10))};
  {
    const auto tracker = run.start(false, back);
    CHECK_THAT(file("data/abandoned/checkpoint.pth"), Contains("samples=30 "));
    CHECK(tracker->finished_as().empty());
    save(*tracker, 20);
  }
  test::CleanEnvironment::set("SLURM_RESTART_COUNT", "1");
  run.start(false, back);
  CHECK_THAT(file("data/checkpoint.pth"), Contains("samples=20 "));
}

TEST_CASE("a run behind a link is set aside where it lies, and the link stays") {
  Run run;
  run.config.overwrite_data_path = true;
  fs::create_directory("disk");
  fs::create_directory_symlink("disk/run", "data");
  fs::create_directory("disk/run");
  save(*run.start(), 10);
  fs::remove("latest.pth");
  save(*run.start(), 20);
  CHECK_THAT(file("disk/run.1/checkpoint.pth"), Contains("samples=10 "));
  CHECK_THAT(file("disk/run/checkpoint.pth"), Contains("samples=20 "));
  CHECK(fs::is_symlink("data"));
}

TEST_CASE("a run whose snapshots lie behind a link goes back to one of them") {
  ResumingRun run;
  fs::create_directory("disk");
  fs::create_directory("data");
  fs::create_directory_symlink("../disk", "data/snapshots");
  run.config.keep_last = 5;
  run.saved(30);
  const std::string back = "data/snapshots/" + snapshot_name(test::at(20));
  run.start(false, {.back_to = back});
  CHECK_THAT(file("data/checkpoint.pth"), Contains("samples=20 "));
  CHECK(fs::exists("data/abandoned/" + snapshot_name(test::at(30))));
}

TEST_CASE("a start that finds a run.json which was not there when it looked writes nothing") {
  ResumingRun run;
  Tracker tracker(run.config, test::placeholders(), false, test::read_facts);
  tracker.open();
  put("data/run.json", "of another start, where locks do not work");
  CHECK_THROWS_WITH(tracker.begin({}), Contains("another start has taken this run over"));
  CHECK(file("data/run.json") == "of another start, where locks do not work");
}

TEST_CASE("a resume moves what is newer than the state it took to abandoned") {
  ResumingRun run;
  run.config.keep_last = 5;
  run.saved(30);
  put("data/checkpoint.pth", "damaged");
  const std::string path = "data/snapshots/" + snapshot_name(test::at(20));
  Tracker tracker(run.config, test::placeholders(), false, test::read_facts);
  tracker.open();
  tracker.begin(test::loaded(path));
  CHECK(fs::exists("data/abandoned/" + snapshot_name(test::at(30))));
  CHECK(tracker.newest_good() == path);
}

TEST_CASE("the newest state to go back to was not saved amid skipped updates") {
  ResumingRun run;
  const auto tracker = run.start();
  CHECK(tracker->newest_good().empty());
  save(*tracker, 10);
  CHECK(tracker->newest_good() == "data/checkpoint.pth");
  save(*tracker, 20, false, /*amid_skips=*/true);
  CHECK(tracker->newest_good() == "data/snapshots/" + snapshot_name(test::at(10)));
}

TEST_CASE("a run that another start has taken over writes nothing more") {
  for (const bool is_gone : {false, true}) {
    CAPTURE(is_gone);
    ResumingRun run;
    const auto tracker = run.start();
    save(*tracker, 10);
    tracker->log({{"loss", 0.5}}, 1);
    const std::string log = file("data/log.jsonl"), state = file("data/checkpoint.pth");
    if (is_gone) {  // set aside, while this one slept
      fs::rename("data", "data.1");
      fs::create_directory("data");
    } else {
      nlohmann::json record = record_of();
      record["token"] = "of another start";
      put("data/run.json", record.dump());
    }
    const char* const why =
        is_gone ? "moved it away (run.json is gone)" : "another start has taken this run over";
    CHECK_THROWS_WITH(tracker->log({{"loss", 0.25}}, 2), Contains(why));
    CHECK_THROWS_AS(tracker->log_images({{"png", ""}}, "a", 2), ConfigError);
    CHECK_THROWS_AS(tracker->log_error("x"), ConfigError);
    CHECK_THROWS_AS(save(*tracker, 20), ConfigError);
    CHECK_THROWS_AS(tracker->store("data/images/x", [](auto&) {}), ConfigError);
    CHECK_THROWS_AS(tracker->save_config("a.json", "{}"), ConfigError);
    CHECK_THROWS_AS(tracker->finish_as("all"), ConfigError);
    CHECK_THROWS_AS(tracker->check(), ConfigError);
    const std::string folder = is_gone ? "data.1" : "data";
    CHECK(file(folder + "/log.jsonl") == log);
    CHECK(file(folder + "/checkpoint.pth") == state);
    if (is_gone) CHECK(fs::is_empty("data"));
  }
}

TEST_CASE("a run.json that cannot be read ends the start with exit 3 and the way out") {
  for (const char* content : {"", "{", "[]", "{}", R"({"id": 3})"}) {
    CAPTURE(content);
    ResumingRun run;
    put("data/run.json", content);
    CHECK_THROWS_AS(run.start(), DataError);
    CHECK_THROWS_WITH(run.start(),
                      Contains("data/run.json") && Contains("Put a copy of the file back"));
    CHECK(file("data/run.json") == content);
  }
}

TEST_CASE("auto_resume.json says where the loggers log to, and decides nothing") {
  ResumingRun run;
  run.saved(10);
  CHECK(run.log.count("/tracker/log/auto_resume is true, and there is no run to resume") == 1);
  CHECK(run.log.count("AUTO-RESUMED") == 0);
  run.start();
  CHECK(run.log.count("RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE ConsoleLogger.") == 1);
  CHECK(file("data/auto_resume.json") == R"({"logger_type":"ConsoleLogger"})");
  fs::remove("data/auto_resume.json");
  CHECK_NOTHROW(run.start());
  for (const char* content : {"", "{", "[]", "{}", R"({"logger_type": 3})"}) {
    CAPTURE(content);
    put("data/auto_resume.json", content);
    CHECK_THROWS_WITH(run.start(), Contains("data/auto_resume.json: unreadable"));
  }
  put("data/auto_resume.json", R"({"run_id": "x", "logger_type": "WandbLogger"})");
  CHECK_THROWS_WITH(
      run.start(),
      Contains("in the auto_resume file is WandbLogger but the current logger is ConsoleLogger"));
  run.auto_resume(false);
  run.config.overwrite_data_path = true;
  fs::remove("latest.pth");
  CHECK_NOTHROW(run.start());  // a new run
  CHECK_FALSE(fs::exists("data/auto_resume.json"));
}

TEST_CASE("unfinished files of a killed start are removed from a run's folder, others stay") {
  ResumingRun run;
  run.saved(10);
  const std::vector<std::string> parts = {"data/checkpoint.pth.part",
                                          "data/images/3_a_0.png.part",
                                          "data/snapshots/best.pth.part",
                                          "data/averages/step00000036.pth.part"};
  for (const std::string& path : parts) put(path, "half");
  put("data/mine/film.part", "mine");
  put("film.part", "mine");
  run.start();
  for (const std::string& path : parts) CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists("data/mine/film.part"));
  CHECK(fs::exists("film.part"));
  CHECK(run.log.count("Removed 4 unfinished files of an interrupted start from data") == 1);
}

TEST_CASE("a dry run tells the same and writes nothing") {
  ResumingRun run;
  Tracker first(run.config, test::placeholders(), false, test::read_facts);
  CHECK(first.look().action == StartAction::kBegin);
  CHECK(fs::is_empty("."));
  run.saved(10);
  const std::string before = file("data/run.json");
  Tracker second(run.config, test::placeholders(), false, test::read_facts);
  CHECK(second.look().action == StartAction::kResume);
  CHECK(file("data/run.json") == before);
}

TEST_CASE("a saver replaces only what its run has saved") {
  Run run;
  LocalSaveConfig fixed, named;
  fixed.save_latest_to = "latest.pth";
  fixed.save_best_to = "best.pth";
  fixed.save_meta_to = "meta";
  named.save_latest_to = "{samples_seen}.pth";
  run.config.save = {fixed, named};
  put("latest.pth", "somebody's");
  put("best.pth", "run=another samples=7");
  CHECK_THROWS_WITH(
      run.start(),
      Contains("mv latest.pth latest.pth.earlier") && Contains("mv best.pth best.pth.earlier"));
  fs::remove("latest.pth");
  fs::remove("best.pth");
  put("0.pth", "somebody's");
  put("meta/decoder_config.json", "somebody's");
  const auto tracker = run.start();
  save(*tracker, 10);
  CHECK(file("0.pth") == "somebody's");
  CHECK(run.log.count("0.pth: a file lies there that this run has not saved") == 1);
  put("latest.pth", "came in mid-run");
  save(*tracker, 20);
  CHECK(file("latest.pth") == "came in mid-run");
  tracker->save_config("decoder_config.json", "{\"a\": 1}");
  CHECK(file("meta/decoder_config.json") == "somebody's");
  fs::remove("meta/decoder_config.json");
  tracker->save_config("decoder_config.json", "{\"a\": 1}");
  tracker->save_config("decoder_config.json", "{\"a\": 2}");
  CHECK(file("meta/decoder_config.json") == "{\"a\": 2}");
  fs::remove("latest.pth");
  save(*tracker, 30);
  save(*tracker, 40);
  CHECK_THAT(file("latest.pth"), Contains("samples=40 "));
}

TEST_CASE("a folder of results outside is absent, empty or this run's") {
  ResumingRun run;
  const auto start = [&] {
    auto tracker =
        std::make_unique<Tracker>(run.config, test::placeholders(), false, test::read_facts);
    tracker->add_folder("results", "/train/results_folder");
    test::begin(*tracker);
    return tracker;
  };
  put("results/1.png", "somebody's");
  CHECK_THROWS_WITH(start(), Contains("/train/results_folder: results is not empty"));
  fs::remove("results/1.png");
  save(*start(), 10);
  CHECK(record_of("results")["id"] == record_of()["id"]);
  put("results/1.png", "its own");
  CHECK_NOTHROW(start());
  fs::rename("data", "gone");
  fs::remove("latest.pth");
  CHECK_THROWS_WITH(start(), Contains("/train/results_folder: results belongs to another run"));
}

TEST_CASE("a copied folder is a run of its own, a moved one stays the run") {
  ResumingRun run;
  run.save_latest_to("{epoch}.pth");
  run.saved(10);
  run.start()->log({{"loss", 0.5}}, 2);
  const std::string id = record_of()["id"];
  put("data/outbox/waiting", "the original's");
  fs::copy("data", "copy", fs::copy_options::recursive);
  run.config.data_path = "copy";
  CHECK(run.start()->run_id() != id);
  CHECK(record_of("copy")["home"] == fs::canonical("copy").string());
  CHECK(run.log.count("copy is a copy of ") == 1);
  CHECK(record_of("data")["first_line"] == 0);
  CHECK(record_of("copy")["first_line"] == 2);  // behind the original's
  CHECK(file("copy/abandoned/outbox/waiting") == "the original's");
  CHECK(record_of()["id"] == id);
  run.log.clear();
  run.start();  // from now on it is nobody's copy
  CHECK(run.log.count("is a copy of") == 0);
  fs::rename("data", "moved");
  run.config.data_path = "moved";
  CHECK(run.start()->run_id() == id);
  CHECK(record_of("moved")["home"] == fs::canonical("moved").string());
  // Another name of the same folder is no copy.
  fs::create_directory_symlink("moved", "alias");
  run.config.data_path = "alias";
  CHECK(run.start()->run_id() == id);
}

TEST_CASE("a copied run does not replace the config that the original has copied elsewhere") {
  ResumingRun run;
  LocalSaveConfig meta;
  meta.save_meta_to = "meta";
  run.config.save = {meta};
  run.saved(10);
  run.start()->save_config("decoder_config.json", "{\"a\": 1}");
  CHECK(file("meta/decoder_config.json") == "{\"a\": 1}");
  fs::copy("data", "copy", fs::copy_options::recursive);
  run.config.data_path = "copy";
  run.start()->save_config("decoder_config.json", "{\"a\": 2}");
  CHECK(file("copy/decoder_config.json") == "{\"a\": 2}");
  CHECK(file("meta/decoder_config.json") == "{\"a\": 1}");
  run.config.data_path =
      "data";  // the original knows its copy, though data_path holds a newer config
  fs::remove("data/decoder_config.json");  // the copy is another name of it
  put("data/decoder_config.json", "{\"a\": 3}");
  run.start()->save_config("decoder_config.json", "{\"a\": 4}");
  CHECK(file("meta/decoder_config.json") == "{\"a\": 4}");
}

}  // namespace
}  // namespace dalle2
