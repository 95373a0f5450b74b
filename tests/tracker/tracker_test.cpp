// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/clean_environment.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::file;
using test::put;
using test::Run;

TEST_CASE("an absent data_path is made with its parents, with overwrite or without") {
  for (const bool overwrite : {false, true}) {
    Run run;
    run.config.data_path = "a/b/data";
    run.config.overwrite_data_path = overwrite;
    run.start();
    CHECK(fs::is_directory("a/b/data"));
  }
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

TEST_CASE("the logger's own W&B run is asked for a checkpoint only if it has an id") {
  Run run;
  TrackerConfig config = run.config;
  WandbLoadConfig load;
  load.wandb_file_path = "latest.pth";
  config.load = load;
  CHECK_THROWS_WITH(
      Tracker(config, {}, false),
      Catch::Contains("/tracker/load/wandb_run_path: null means the logger's own run, "
                      "which is a new one"));
  load.only_auto_resume = true;
  config.load = load;
  CHECK_NOTHROW(Tracker(config, {}, false));
  load.only_auto_resume = false;
  load.wandb_run_path = "run1";
  config.load = load;
  CHECK_THROWS_WITH(
      Tracker(config, {}, false),
      Catch::Contains("/tracker/load/wandb_run_path: \"run1\" is not a run of Weights & Biases"));
}

TEST_CASE("other ranks write nothing") {
  Run run;
  const auto tracker = run.start(/*dummy=*/true);
  tracker->log({{"Epoch", int64_t{0}}}, 0);
  tracker->log_images({{"png", "caption"}}, "Test Samples", 0);
  tracker->log_error("nothing");
  tracker->save_config("decoder_config.json", "{}");
  tracker->save({.is_best = true,
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
  WandbLoadConfig wandb;
  wandb.wandb_file_path = "l.pth";
  wandb.wandb_run_path = "team/project/run1";
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

TEST_CASE("of a record the console shows what was chosen for people, and the log has all of it") {
  Run run;
  const auto tracker = run.start();
  CHECK(tracker->prints_records());
  CHECK(run.log.count("Logging to console") == 1);
  run.log.clear();
  tracker->log({{"Epoch", int64_t{0}}, {"Unet 0 Training Loss", 0.25}},
               10,
               ShownRecord{{.label = "loss", .values = {0.25}}});
  tracker->log({{"Dropped", int64_t{3}}}, 11, ShownRecord{});
  tracker->log({{"Epoch", int64_t{1}}, {"loss", 0.5}}, 12);  // nobody chose
  REQUIRE(run.log.lines().size() == 2);
  CHECK(run.log.lines()[0].tag.empty());
  CHECK(run.log.lines()[0].text == "step 10  loss 0.25");
  CHECK(run.log.lines()[1].text == "step 12  Epoch 1  loss 0.5");
  CHECK(test::log_text() ==
        "{\"Epoch\": 0, \"Unet 0 Training Loss\": 0.25, \"step\": 10}\n"
        "{\"Dropped\": 3, \"step\": 11}\n{\"Epoch\": 1, \"loss\": 0.5, \"step\": 12}\n");
}

TEST_CASE("an error is a line on the console and in the log, with the step it came after") {
  Run run;
  const auto tracker = run.start();
  tracker->log({}, 7);
  tracker->log_error("shard lost");
  CHECK(run.log.count(LogLevel::kError) == 1);
  CHECK(test::log_text() == "{\"step\": 7}\n{\"error\": \"shard lost\", \"step\": 7}\n");
}

TEST_CASE("an error before the first record of a resumed run has the step of its checkpoint") {
  test::ResumingRun run;
  run.saved(30);
  run.start()->log_error("shard lost");
  CHECK(test::log_text() == "{\"error\": \"shard lost\", \"step\": 3}\n");
}

TEST_CASE("pictures lie in images, named by step, section and number") {
  Run run;
  const auto tracker = run.start();
  tracker->log_images({{"first", "Train: a cat"}, {"second", ""}}, "Train Samples", 30);
  CHECK(file("data/images/30_Train Samples_0.png") == "first");
  CHECK(file("data/images/30_Train Samples_1.png") == "second");
  const auto record = nlohmann::json::parse(test::log_text());
  CHECK(record["Train Samples"][0]["caption"] == "Train: a cat");
  CHECK(fs::exists(fs::path("data") / record["Train Samples"][1]["path"].get<std::string>()));
  CHECK(run.log.lines().back().text ==
        "step 30  Train Samples: 2 pictures, from images/30_Train Samples_0.png");
  tracker->log_images({{"png", ""}}, "a/../b", 1);
  CHECK(run.log.lines().back().text == "step 1  a/../b: images/1_a_.._b_0.png");
  CHECK(fs::exists("data/images/1_a_.._b_0.png"));
}

TEST_CASE("logging before the run has begun is a broken promise, not a crash") {
  Run run;
  Tracker tracker(run.config, test::placeholders(), /*dummy=*/false);
  tracker.open();
  CHECK_THROWS_AS(tracker.log({}, 0), std::logic_error);
  CHECK_THROWS_AS(tracker.log_images({}, "Test Samples", 0), std::logic_error);
  CHECK_THROWS_AS(tracker.log_error("x"), std::logic_error);
}

TEST_CASE("a file that cannot be stored is an error in the log, and its run has not finished") {
  Run run;
  const auto tracker = run.start();
  put("a file", "");
  const auto write = [](const std::string& path) { write_file_atomically(path, "content"); };
  tracker->store("data/results/1.png", write);
  CHECK(file("data/results/1.png") == "content");
  tracker->store("a file/1.png", write);
  CHECK_THAT(file("data/log.jsonl"), Catch::Contains("Error storing a file/1.png: "));
  tracker->finish_as("everything");
  CHECK(tracker->finished_as().empty());
}

}  // namespace
}  // namespace dalle2
