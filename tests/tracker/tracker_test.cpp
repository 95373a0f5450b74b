// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/temp_dir.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::file;
using test::put;
using test::Run;

void save_latest(Tracker& tracker) {
  tracker.save(
      {.is_latest = true,
       .placeholders = test::placeholders(),
       .write_checkpoint = [](const std::string& path) { write_file_atomically(path, "own"); },
       .write_model = [](const std::string& path) { write_file_atomically(path, "model"); }});
}

TEST_CASE("a data_path that exists is refused unless it may be overwritten") {
  Run run;
  fs::create_directory("data");
  put("data/old.txt", "kept");
  CHECK_THROWS_WITH(
      run.start(),
      Catch::StartsWith("/tracker/data_path: the folder data exists.\n  Set "
                        "/tracker/overwrite_data_path to true to resume the run in it"));
  put("data/run.lock", "another run's");
  CHECK_THROWS_WITH(run.start(), Catch::Contains("exists, and a run works in it or was killed.\n"));
  fs::remove("data/run.lock");
  run.config.overwrite_data_path = true;
  run.start();
  CHECK(file("data/old.txt") == "kept");
  CHECK(fs::exists("data/log.jsonl"));
}

TEST_CASE("a start that is refused after the lock leaves no folder behind") {
  Run run;
  {
    Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
    tracker.init();
    CHECK(fs::exists("data/run.lock"));
  }
  CHECK_FALSE(fs::exists("data"));
  fs::create_directory("data");  // somebody else's stays
  run.config.overwrite_data_path = true;
  {
    Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
    tracker.init();
  }
  CHECK(fs::is_empty("data"));
}

TEST_CASE("an absent data_path is made with its parents, with overwrite or without") {
  for (const bool overwrite : {false, true}) {
    Run run;
    run.config.data_path = "a/b/data";
    run.config.overwrite_data_path = overwrite;
    run.start();
    CHECK(fs::is_directory("a/b/data"));
  }
}

TEST_CASE("what is only looked at leaves nothing behind: a faulty start can be repeated") {
  Run run;
  Tracker(run.config, test::placeholders(), /*dummy=*/false);
  CHECK_FALSE(fs::exists("data"));
  run.load("absent.pth", /*only_auto_resume=*/false);
  CHECK_THROWS_AS(run.start(), ConfigError);
  CHECK_FALSE(fs::exists("data"));
}

TEST_CASE("a data_path that is a file, or lies below one, is refused with the reason") {
  Run run;
  put("data", "a file");
  run.config.overwrite_data_path = true;
  CHECK_THROWS_WITH(run.start(), Catch::Contains("'data' is a file; expected a folder"));
  run.config.data_path = "data/below";
  CHECK_THROWS_WITH(
      run.start(),
      Catch::Contains(
          "/tracker/data_path: 'data/below' cannot be written: 'data' is a file; expected a "
          "folder"));
}

TEST_CASE("a run without savers is refused") {
  Run run;
  run.config.save.clear();
  CHECK_THROWS_WITH(run.start(), Catch::Contains("`savers` must be set"));
}

TEST_CASE("the logger's own W&B run is asked for a checkpoint only if it has an id") {
  Run run;
  TrackerConfig config = run.config;
  config.load = WandbLoadConfig{.wandb_file_path = "latest.pth", .wandb_run_path = {}};
  CHECK_THROWS_WITH(
      Tracker(config, {}, false),
      Catch::Contains("/tracker/load/wandb_run_path: null means the logger's own run, "
                      "which is a new one"));
  config.load = WandbLoadConfig{
      .wandb_file_path = "latest.pth", .wandb_run_path = {}, .only_auto_resume = true};
  CHECK_NOTHROW(Tracker(config, {}, false));
  config.load = WandbLoadConfig{.wandb_file_path = "latest.pth", .wandb_run_path = "run1"};
  CHECK_THROWS_WITH(
      Tracker(config, {}, false),
      Catch::Contains("/tracker/load/wandb_run_path: \"run1\" is not a run of Weights & Biases"));
}

TEST_CASE("other ranks write nothing") {
  Run run;
  Tracker tracker = run.start(/*dummy=*/true);
  tracker.log({{"Epoch", int64_t{0}}}, 0);
  tracker.log_images({{"png", "caption"}}, "Test Samples", 0);
  tracker.log_error("nothing");
  tracker.save_config("decoder_config.json", "{}");
  tracker.save({.is_best = true,
                .is_latest = true,
                .placeholders = {},
                .write_checkpoint = nullptr,
                .write_model = nullptr});
  CHECK(fs::is_empty(run.folder.path()));
  CHECK(run.log.lines().empty());
}

TEST_CASE("only rank 0 needs the login of what is loaded") {
  const test::AwsEnvironment aws;
  const test::CleanEnvironment environment(
      {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "WANDB_MODE", "WANDB_BASE_URL"});
  test::CleanEnvironment::set("AWS_PROFILE", "absent");
  test::CleanEnvironment::set("WANDB_MODE", "sometimes");
  Run run;
  HuggingfaceLoadConfig hub;
  hub.huggingface_repo = "owner/name";
  hub.huggingface_file_path = "l.pth";
  hub.token_path = "absent";
  UrlLoadConfig s3;
  s3.url = "s3://bucket/l.pth";
  const WandbLoadConfig wandb{.wandb_file_path = "l.pth", .wandb_run_path = "team/project/run1"};
  for (const auto& [load, text] : std::vector<std::pair<LoadConfig, std::string>>{
           {hub, "/tracker/load/huggingface_file_path: token_path: 'absent' cannot be read"},
           {s3, "/tracker/load/url: AWS_PROFILE is \"absent\""},
           {wandb, "WANDB_MODE is \"sometimes\""}}) {
    run.config.load = load;
    CHECK_THROWS_WITH(run.start(), Catch::Contains(text));
    CHECK_NOTHROW(run.start(/*dummy=*/true));
  }
  CHECK(fs::is_empty(run.folder.path()));
}

TEST_CASE("other ranks do not mind a data_path that rank 0 has made") {
  Run run;
  const Tracker main = run.start();
  CHECK_NOTHROW(run.start(/*dummy=*/true));
}

TEST_CASE("without auto_resume and its file a run is a new one, silently") {
  Run run;
  const Tracker tracker = run.start();
  CHECK_FALSE(tracker.auto_resumed());
  CHECK_FALSE(fs::exists("data/auto_resume.json"));
  CHECK(run.log.count("uto") == 0);
}

TEST_CASE("the first run with auto_resume says so and leaves the mark") {
  Run run;
  run.auto_resume(true);
  Tracker tracker = run.start();
  CHECK_FALSE(tracker.auto_resumed());
  CHECK(run.log.count(
            "/tracker/log/auto_resume is true, and there is no run to resume: this is the first "
            "start") == 1);
  const auto mark = nlohmann::json::parse(file("data/auto_resume.json"));
  CHECK(mark == nlohmann::json{{"logger_type", "ConsoleLogger"},
                               {"dalle2_train_run_id", tracker.run_id()}});
  tracker.log({{"loss", 0.5}}, 3);
  CHECK(file("data/log.jsonl") ==
        "{\"run_id\": \"" + tracker.run_id() + "\", \"step\": 3}\n{\"loss\": 0.5, \"step\": 3}\n");
}

TEST_CASE("what the records say is logged once, though they are read before and after the lock") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  fs::create_directory("data");
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false, test::read_facts);
  tracker.look_for_earlier_run();
  test::begin(tracker);
  CHECK(run.log.count("this is the first start") == 1);
}

TEST_CASE("the second run with auto_resume goes on with the first and warns of it") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  run.load("latest.pth", /*only_auto_resume=*/true);
  {
    Tracker first = run.start();
    first.log({{"Epoch", int64_t{0}}}, 1);
    save_latest(first);
  }
  run.log.clear();
  Tracker tracker = run.start();
  CHECK(tracker.auto_resumed());
  CHECK(run.log.count("RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE ConsoleLogger") == 1);
  tracker.log({{"Epoch", int64_t{1}}}, 2);
  CHECK(test::log_text() == "{\"Epoch\": 0, \"step\": 1}\n{\"Epoch\": 1, \"step\": 2}\n");
  CHECK(fs::exists("data/auto_resume.json"));
}

TEST_CASE("a run without auto_resume removes the mark and starts a log of its own") {
  Run run;
  run.config.overwrite_data_path = true;
  run.auto_resume(true);
  run.start().log({}, 1);
  run.auto_resume(false);
  const Tracker tracker = run.start();
  CHECK_FALSE(tracker.auto_resumed());
  CHECK_FALSE(fs::exists("data/auto_resume.json"));
  CHECK(run.log.count("Removing auto_resume.json because auto_resume is not enabled in the config: "
                      "it is now data/auto_resume.1.json") == 1);
  CHECK(test::log_text().empty());
  CHECK_THAT(file("data/log.1.jsonl"), Catch::EndsWith("\n{\"step\": 1}\n"));
}

TEST_CASE("a mark of another logger is refused with advice, and stays") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  put("data/auto_resume.json", R"({"run_id": "x", "logger_type": "WandbLogger"})");
  CHECK_THROWS_WITH(
      run.start(),
      Catch::Contains("in the auto_resume file is WandbLogger but the current logger is "
                      "ConsoleLogger") &&
          Catch::Contains("set /tracker/log/auto_resume to false"));
  CHECK(fs::exists("data/auto_resume.json"));
  CHECK_FALSE(fs::exists("data/log.jsonl"));
}

TEST_CASE("a damaged mark is answered with what to do") {
  for (const char* content : {"", "{", "[]", "{}", R"({"logger_type": 3})"}) {
    CAPTURE(content);
    Run run;
    run.auto_resume(true);
    run.config.overwrite_data_path = true;
    put("data/auto_resume.json", content);
    CHECK_THROWS_WITH(run.start(),
                      Catch::Contains("data/auto_resume.json: unreadable") &&
                          Catch::Contains("delete it to start a new one"));
  }
}

TEST_CASE("another rank is resumed if rank 0 says so") {
  Run run;
  run.auto_resume(true);
  run.load("absent.pth", /*only_auto_resume=*/true);
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/true);
  tracker.init({.auto_resumed_on_main = true});
  CHECK(tracker.auto_resumed());
  CHECK(tracker.can_recall());
}

TEST_CASE("a file to load that is not there is refused before anything is written") {
  Run run;
  run.load("models/absent.pth", /*only_auto_resume=*/false);
  CHECK_THROWS_WITH(run.start(),
                    Catch::StartsWith("Model not found at models/absent.pth") &&
                        Catch::Contains(run.folder.path()));
  CHECK_THROWS_AS(run.start(/*dummy=*/true), ConfigError);
  fs::create_directories("models/absent.pth");
  CHECK_THROWS_WITH(run.start(), Catch::Contains("is a folder"));
}

TEST_CASE("only_auto_resume ignores the missing file first, and loads it in the second run") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  run.load("latest.pth", /*only_auto_resume=*/true);
  {
    Tracker first = run.start();
    CHECK_FALSE(first.can_recall());
    CHECK_THROWS_WITH(first.recall_candidates(),
                      "Tried to recall, but no loader was set or auto-resume was not performed.");
    save_latest(first);
  }
  fs::remove("data/checkpoint.pth");
  const Tracker second = run.start();
  CHECK(second.can_recall());
  CHECK(second.recall_candidates() == std::vector<std::string>{"latest.pth"});
}

TEST_CASE("without a loader there is nothing to recall") {
  Run run;
  const Tracker tracker = run.start();
  CHECK_FALSE(tracker.can_recall());
  CHECK_THROWS_AS(tracker.recall_candidates(), ConfigError);
}

TEST_CASE("a resumed run falls back on its own checkpoint, a run from elsewhere does not") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  put("data/auto_resume.json", R"({"logger_type": "ConsoleLogger"})");
  put("data/checkpoint.pth", "own");
  run.load("latest.pth", /*only_auto_resume=*/true);
  CHECK(run.start().recall_candidates() == std::vector<std::string>{"data/checkpoint.pth"});
  put("latest.pth", "copy");
  CHECK(run.start().recall_candidates() ==
        std::vector<std::string>{"data/checkpoint.pth", "latest.pth"});
  run.load("./data/checkpoint.pth", /*only_auto_resume=*/true);
  CHECK(run.start().recall_candidates() == std::vector<std::string>{"data/checkpoint.pth"});

  run.auto_resume(false);
  run.load("latest.pth", /*only_auto_resume=*/false);
  CHECK(run.start().recall_candidates() == std::vector<std::string>{"latest.pth"});
}

TEST_CASE("a run that was killed before its first save has nothing to recall and starts anew") {
  Run run;
  run.auto_resume(true);
  run.config.overwrite_data_path = true;
  run.load("latest.pth", /*only_auto_resume=*/true);
  run.start();
  const Tracker second = run.start();
  CHECK(second.can_recall());
  CHECK(second.recall_candidates().empty());
}

TEST_CASE("a run goes back to what it saved itself, not to what an earlier one left") {
  Run run;
  run.config.overwrite_data_path = true;
  put("data/checkpoint.pth", "of an earlier run");
  std::optional<Tracker> tracker(run.start());
  CHECK(tracker->own_checkpoints().empty());
  save_latest(*tracker);
  CHECK(tracker->own_checkpoints() == std::vector<std::string>{"data/checkpoint.pth"});
  tracker.reset();

  run.auto_resume(true);
  run.load("latest.pth", /*only_auto_resume=*/true);
  put("data/auto_resume.json", R"({"logger_type": "ConsoleLogger"})");
  CHECK(run.start().own_checkpoints() == std::vector<std::string>{"data/checkpoint.pth"});
}

TEST_CASE("a record is a console line and a line of the log") {
  Run run;
  Tracker tracker = run.start();
  tracker.log({{"Epoch", int64_t{0}}, {"Unet 0 Training Loss", 0.25}}, 10);
  CHECK(run.log.count("Logging to console") == 1);
  REQUIRE_FALSE(run.log.lines().empty());
  CHECK(run.log.lines().back().tag.empty());
  CHECK(run.log.lines().back().text == "step 10  Epoch 0  Unet 0 Training Loss 0.25");
  CHECK(test::log_text() == "{\"Epoch\": 0, \"Unet 0 Training Loss\": 0.25, \"step\": 10}\n");
}

TEST_CASE("of a record the console shows what was chosen for people, and the log has all of it") {
  Run run;
  Tracker tracker = run.start();
  CHECK(tracker.prints_records());
  run.log.clear();
  tracker.log({{"Epoch", int64_t{0}}, {"Unet 0 Training Loss", 0.25}},
              10,
              ShownRecord{{.label = "loss", .values = {0.25}}});
  tracker.log({{"Dropped", int64_t{3}}}, 11, ShownRecord{});
  REQUIRE(run.log.lines().size() == 1);
  CHECK(run.log.lines()[0].text == "step 10  loss 0.25");
  CHECK(test::log_text() ==
        "{\"Epoch\": 0, \"Unet 0 Training Loss\": 0.25, \"step\": 10}\n"
        "{\"Dropped\": 3, \"step\": 11}\n");
}

TEST_CASE("an error is a line on the console and in the log, with the step it came after") {
  Run run;
  Tracker tracker = run.start();
  tracker.log({}, 7);
  tracker.log_error("shard lost");
  CHECK(run.log.count(LogLevel::kError) == 1);
  CHECK(test::log_text() == "{\"step\": 7}\n{\"error\": \"shard lost\", \"step\": 7}\n");
}

TEST_CASE("pictures lie in images, named by step, section and number") {
  Run run;
  Tracker tracker = run.start();
  tracker.log_images({{"first", "Train: a cat"}, {"second", ""}}, "Train Samples", 30);
  CHECK(file("data/images/30_Train Samples_0.png") == "first");
  CHECK(file("data/images/30_Train Samples_1.png") == "second");
  const auto record = nlohmann::json::parse(test::log_text());
  CHECK(record["Train Samples"][0]["caption"] == "Train: a cat");
  CHECK(fs::exists(fs::path("data") / record["Train Samples"][1]["path"].get<std::string>()));
  CHECK(run.log.lines().back().text ==
        "step 30  Train Samples: 2 pictures, from images/30_Train Samples_0.png");
  tracker.log_images({{"png", ""}}, "a/../b", 1);
  CHECK(run.log.lines().back().text == "step 1  a/../b: images/1_a_.._b_0.png");
  CHECK(fs::exists("data/images/1_a_.._b_0.png"));
}

TEST_CASE("logging before the start is decided is a broken promise, not a crash") {
  Run run;
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
  tracker.init();
  CHECK_THROWS_AS(tracker.log({}, 0), std::logic_error);
  CHECK_THROWS_AS(tracker.save_config("config.json", "{}"), std::logic_error);
  CHECK_THROWS_AS(save_latest(tracker), std::logic_error);
  CHECK_THROWS_AS(tracker.log_images({}, "Test Samples", 0), std::logic_error);
  CHECK_THROWS_AS(tracker.log_error("x"), std::logic_error);
}

TEST_CASE("metadata cannot take the place of the state in a checkpoint") {
  Run run;
  Tracker tracker = run.start();
  tracker.add_save_metadata("config", "{}");
  for (const char* key : {"scaler", "optimizer", "model", "version", "step", "steps"}) {
    tracker.add_save_metadata(key, "\"taken\"");
  }
  tracker.add_save_metadata("config", "{\"seed\": 1}");
  CHECK(tracker.checkpoint_metadata() == SaveMetadata{{"config", "{\"seed\": 1}"}});
  const SaveMetadata model = tracker.model_metadata();
  CHECK(model.front() == std::pair<std::string, std::string>("version", "\"1.15.6\""));
  CHECK(std::count(
            model.begin(), model.end(), SaveMetadata::value_type("config", "{\"seed\": 1}")) == 1);
}

TEST_CASE("unfinished files of an interrupted run are swept, those of others stay") {
  Run run;
  run.config.overwrite_data_path = true;
  LocalSaveConfig save;
  save.save_latest_to = "out/[a]_{epoch:03d}_{{x}}.pth";
  run.config.save = {save};
  const std::vector<std::string> ours = {"data/checkpoint.pth.part",
                                         "data/model.pth.part",
                                         "data/lora.safetensors.part",
                                         "data/gathered.part",
                                         "data/auto_resume.json.part",
                                         "data/targets.json.part",
                                         "data/decoder_config.json.part",
                                         "data/prior_config.json.part",
                                         "data/run.lock.a-host.example.123.4.part",
                                         "data/images/3_Validation Samples_0.png.part",
                                         "data/images/3.png.part",
                                         "data/images/3.ema.png.part",
                                         "data/snapshots/best.pth.part",
                                         "data/snapshots/last_good.pth.part",
                                         "data/snapshots/epoch0003_sample0000009872_step00001234"
                                         ".pth.part",
                                         "data/averages/step00000036.pth.part"};
  // What the run has written is in its record; a name of the template may be anybody's.
  const std::string beside_target = "out/[a]_007_{x}.pth.part";
  put("data/targets.json",
      nlohmann::json{{"paths",
                      {(fs::current_path() / "out/[a]_007_{x}.pth").string(),
                       (fs::current_path() / "out/[a]_006_{x}.pth").string(),
                       "mine/link.pth"}}}
          .dump());
  const std::vector<std::string> of_others = {"data/notes.part",
                                              "data/my_config.json.part",
                                              "data/run.lock.old.part",
                                              "data/best.pth.part",
                                              "data/3_a_0.png.part",
                                              "data/images/film.part",
                                              "data/images/3.other.png.part",
                                              "data/images/checkpoint.pth.part",
                                              "data/images/more/3_a_0.png.part",
                                              "data/snapshots/epoch3_sample9_step1.pth.part",
                                              "data/averages/step.pth.part",
                                              "data/averages/stepwise.pth.part",
                                              "data/mine/checkpoint.pth.part",
                                              "data/tensorboard/checkpoint.pth.part",
                                              "out/a_007_{x}.pth.part",
                                              "out/[a]_008_{x}.pth.part",
                                              "out/[a]_mine_{x}.pth.part",
                                              "out/film.part"};
  for (const std::string& path : ours) put(path, "half");
  put(beside_target, "half");
  for (const std::string& path : of_others) put(path, "not ours");
  fs::create_symlink("checkpoint.pth", "data/mine/link.pth.part");
  fs::create_symlink("checkpoint.pth", "data/model.pth.part.link");
  fs::remove("data/model.pth.part");
  fs::rename("data/model.pth.part.link", "data/model.pth.part");  // a link is not ours
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
  tracker.init();  // what is set aside for another run comes later
  for (const std::string& path : ours) {
    INFO(path);
    CHECK(fs::is_symlink(path) == (path == "data/model.pth.part"));
    CHECK_FALSE(fs::is_regular_file(path));
  }
  for (const std::string& path : of_others) {
    INFO(path);
    CHECK(fs::exists(path));
  }
  CHECK_FALSE(fs::exists(beside_target));
  CHECK(fs::is_symlink("data/mine/link.pth.part"));
  CHECK(run.log.count("Removed " + fs::current_path().string() + "/" + beside_target +
                      ", left by an interrupted save") == 1);
  CHECK(run.log.count("left by an interrupted save") == 1);
  tracker.begin_anew();
  CHECK(fs::exists("out/film.part"));
  CHECK(fs::exists("out/[a]_008_{x}.pth.part"));
  CHECK(run.log.count("Removed 14 unfinished files of an interrupted run from data: "
                      "auto_resume.json.part, checkpoint.pth.part, ") == 1);
}

}  // namespace
}  // namespace dalle2
