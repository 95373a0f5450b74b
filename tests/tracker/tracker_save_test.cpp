// SPDX-License-Identifier: MIT
// The saving rule: which file goes where, and what a failing saver does.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

LocalSaveConfig saver(std::optional<std::string> latest,
                      std::optional<std::string> best,
                      SaveType type = SaveType::checkpoint) {
  LocalSaveConfig config;
  config.save_latest_to = std::move(latest);
  config.save_best_to = std::move(best);
  config.save_type = type;
  return config;
}

/// A run in an empty working directory that saves counted contents.
struct SavingRun : test::Run {
  int saves = 0;
  bool has_adapters = false;

  std::string id = {};  // of the run that writes these files

  std::unique_ptr<Tracker> start(const std::vector<SaveConfig>& savers) {
    config.save = savers;
    const auto read = [this](const std::string& path) -> std::optional<SavedFacts> {
      if (!fs::is_regular_file(path)) return std::nullopt;
      const std::string kind = read_file(path).substr(0, 4);
      if (kind != "chec" && kind != "mode" && kind != "lora") return std::nullopt;
      return SavedFacts{.run_id = id};
    };
    auto tracker = std::make_unique<Tracker>(config, test::placeholders(), false, read);
    test::begin(*tracker);
    id = tracker->run_id();
    return tracker;
  }
  void save(Tracker& tracker, bool is_best, bool is_latest, std::vector<double> losses = {}) {
    ++saves;
    using Writer = std::function<void(const std::string& path)>;
    const auto writer = [this](const std::string& kind) -> Writer {
      return [this, kind](const std::string& path) {
        write_file_atomically(path, kind + " " + std::to_string(saves));
      };
    };
    tracker.save({.is_best = is_best,
                  .is_latest = is_latest,
                  .placeholders = {{"epoch", int64_t{3}},
                                   {"sample", int64_t{64}},
                                   {"next_task", std::string("train")},
                                   {"validation_losses", std::move(losses)},
                                   {"samples_seen", int64_t{3064}}},
                  .write_checkpoint = writer("checkpoint"),
                  .write_model = writer("model"),
                  .write_lora = has_adapters ? writer("lora") : Writer()});
  }
};

TEST_CASE("each save leaves checkpoint.pth and model.pth in data_path") {
  SavingRun run;
  const auto tracker = run.start({saver("latest.pth", {}), saver("./data/checkpoint.pth", {})});
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true);
  CHECK(read_file("data/checkpoint.pth") == "checkpoint 1");  // not copied over itself
  CHECK(run.log.count(LogLevel::kError) == 0);
  CHECK(read_file("data/model.pth") == "model 1");
  CHECK(run.log.count("Saving checkpoint locally") == 2);
  CHECK(run.log.count("Saved checkpoint.pth, model.pth in data") == 1);
  CHECK(run.log.count("Saved checkpoint to local path latest.pth") == 1);
  run.save(*tracker, /*is_best=*/true, /*is_latest=*/false);  // no saver wants the best
  CHECK(read_file("data/checkpoint.pth") == "checkpoint 2");
  CHECK(read_file("latest.pth") == "checkpoint 1");
}

TEST_CASE("a run with adapters leaves their file too, and savers copy it") {
  SavingRun run;
  const auto tracker =
      run.start({saver("latest.pth", {}), saver("adapters.st", {}, SaveType::lora)});
  run.has_adapters = true;
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true);
  CHECK(read_file("data/lora.safetensors") == "lora 1");
  CHECK(read_file("adapters.st") == "lora 1");
  CHECK(read_file("latest.pth") == "checkpoint 1");
  CHECK(run.log.count("Saving lora locally") == 1);
  CHECK_THROWS_WITH(
      run.start({saver("data/lora.safetensors", {})}),
      Catch::Contains("is a place of the run's own files, a checkpoint cannot be saved"));
}

TEST_CASE("latest and best go to their own targets, as their savers' types, with parents made") {
  SavingRun run;
  const auto tracker =
      run.start({saver("a/b/latest.pth", {}), saver({}, "c/best.pth", SaveType::model)});
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/false);  // does nothing
  CHECK_FALSE(fs::exists("data/checkpoint.pth"));
  run.saves = 0;
  run.save(*tracker, /*is_best=*/true, /*is_latest=*/true);
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true);
  CHECK(read_file("a/b/latest.pth") == "checkpoint 2");
  CHECK(read_file("c/best.pth") == "model 1");
  CHECK(fs::equivalent("a/b/latest.pth", "data/checkpoint.pth"));  // no second copy of the bytes
}

TEST_CASE("placeholders take the values of the save") {
  SavingRun run;
  const auto tracker = run.start({saver(
      "out/{epoch:03d}_{sample}_{next_task}_{samples_seen:6d}_{validation_losses}.pth", {})});
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true, {0.5, 0.25});
  CHECK(read_file("out/003_64_train_  3064_[0.5, 0.25].pth") == "checkpoint 1");
}

TEST_CASE("a saver that fails is told, and the others still save") {
  SavingRun run;
  const auto tracker =
      run.start({saver("a/b.pth", {}), saver("file/below.pth", {}), saver("latest.pth", {})});
  std::ofstream("a") << "no folder";
  std::ofstream("file") << "no folder";
  CHECK_NOTHROW(run.save(*tracker, /*is_best=*/false, /*is_latest=*/true));
  CHECK(read_file("latest.pth") == "checkpoint 1");
  CHECK(run.log.count("Error saving checkpoint: ") == 2);
  CHECK(run.log.count(LogLevel::kError) == 2);
  CHECK_THAT(read_file("data/log.jsonl"),
             Catch::Contains("\"error\": \"Error saving checkpoint: "));
}

TEST_CASE("a template that only some values fit fails alone") {
  SavingRun run;
  const auto tracker =
      run.start({saver("{validation_losses[0]}.pth", {}), saver("latest.pth", {})});
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true);
  CHECK(run.log.count("the list has 0 entries now") == 1);
  CHECK(fs::exists("latest.pth"));
  run.save(*tracker, /*is_best=*/false, /*is_latest=*/true, {0.5, 0.25});
  CHECK(read_file("0.5.pth") == "checkpoint 2");
}

TEST_CASE("a start takes a template with an entry of a list that is empty then") {
  test::Run run;
  run.config.save = {saver("l{validation_losses[2]:.3f}.pth", "b{validation_losses[0]}.pth")};
  Tracker tracker(run.config, {{"validation_losses", std::vector<double>{}}}, /*dummy=*/false);
  CHECK_NOTHROW(test::begin(tracker));
}

TEST_CASE("a saver spares the run's records and folders") {
  SavingRun run;
  std::filesystem::create_directories("real");
  std::filesystem::create_directory_symlink("real", "link");
  for (const char* target : {"data/log.jsonl",
                             "data/./run.json",
                             "data/auto_resume.json",
                             "data/run.lock",
                             "data/decoder_config.json",
                             "data/outbox/latest.pth",
                             "data/snapshots/best.pth",
                             "data/images/1.png"}) {
    INFO(target);
    CHECK_THROWS_WITH(run.start({saver(target, {})}),
                      Catch::Contains("is a place of the run's own files"));
  }
  CHECK_THROWS_WITH(run.start({saver({}, "data//checkpoint.pth", SaveType::model)}),
                    Catch::Contains("is a place of the run's own files, a model cannot"));
  CHECK_THROWS_WITH(run.start({saver("data/model.pth", {})}),
                    Catch::Contains("is a place of the run's own files, a checkpoint cannot"));
  CHECK_THROWS_WITH(run.start({saver("data", {})}),
                    Catch::Contains("'data' is data_path or a folder above it"));
  CHECK_THROWS_WITH(run.start({saver("data/checkpoint.pth.part", {})}),
                    Catch::Contains("has the name of an unfinished file"));
  const auto tracker = run.start(
      {saver("data/kept/{epoch}.pth", "data/logs/log.jsonl.pth"), saver("link/latest.pth", {})});
  run.save(*tracker, /*is_best=*/true, /*is_latest=*/true);
  CHECK(run.log.count(LogLevel::kError) == 0);
  CHECK(read_file("data/logs/log.jsonl.pth") == "checkpoint 1");
  CHECK(read_file("real/latest.pth") == "checkpoint 1");
}

TEST_CASE("bad targets are refused at the start with key, text and reason") {
  SavingRun run;
  CHECK_THROWS_WITH(run.start({saver("{epcoh}.pth", {})}),
                    Catch::Contains("save_latest_to: '{epcoh}.pth': unknown placeholder {epcoh}"));
  CHECK_THROWS_WITH(run.start({saver({}, "{epoch:03q}.pth")}),
                    Catch::Contains("save_best_to") && Catch::Contains("'{epoch:03q}' is no form"));
  CHECK_THROWS_WITH(run.start({saver("{epoch", {})}), Catch::Contains("without its '}'"));
  CHECK_THROWS_WITH(run.start({saver("../latest.pth", {})}), Catch::Contains("'..' is refused"));
  CHECK_THROWS_WITH(run.start({saver("a/{epoch}/../latest.pth", {})}),
                    Catch::Contains("'..' is refused"));
  CHECK_THROWS_WITH(run.start({saver("", {})}), Catch::Contains("names no file"));
  CHECK_THROWS_WITH(run.start({saver("folder/", {})}), Catch::Contains("names no file"));
  LocalSaveConfig meta;
  meta.save_meta_to = "../meta";
  CHECK_THROWS_WITH(run.start({meta}), Catch::Contains("save_meta_to") && Catch::Contains("'..'"));
  CHECK_NOTHROW(run.start({saver("a..b/..c.pth", {})}));
  CHECK_NOTHROW(run.start({saver(run.folder / "absolute.pth", {})}));
}

TEST_CASE("a whole address is a target of the saver url alone, and its secrets are not shown") {
  const std::string address = "https://user:canary@h/l.pth?sig=canary";
  const auto refused = [&](SaveConfig config) {
    std::visit([&](auto& each) { each.save_latest_to = address; }, config);
    SavingRun run;
    std::string text;
    try {
      run.start({config});
    } catch (const ConfigError& error) {
      text = error.what();
    }
    CHECK(fs::is_empty(".") == !text.empty());
    return text;
  };
  S3SaveConfig s3;
  s3.url = "s3://bucket";
  HuggingfaceSaveConfig hub;
  hub.huggingface_repo = "owner/name";
  UrlSaveConfig url;
  url.url = "https://h";
  for (const SaveConfig& config :
       std::vector<SaveConfig>{LocalSaveConfig{}, s3, hub, WandbSaveConfig{}, url}) {
    CAPTURE(config.index());
    CHECK(
        refused(config) ==
        "/tracker/save/save_latest_to: 'https://h/l.pth' is a whole address; expected a path\n  For a "
        "server, use the saver \"url\" with the folder as its `url`.");
  }
  LocalSaveConfig meta;
  meta.save_meta_to = address;
  CHECK_THROWS_WITH(SavingRun().start({meta}),
                    Catch::Contains("save_meta_to: 'https://h/l.pth' is"));
}

TEST_CASE("the config is kept in data_path and with each saver that has save_meta_to") {
  SavingRun run;
  LocalSaveConfig with_meta = saver("latest.pth", {});
  with_meta.save_meta_to = "meta/run1";
  LocalSaveConfig only_meta;
  only_meta.save_meta_to = "{not_a_placeholder}";
  LocalSaveConfig failing;
  failing.save_meta_to = "file";
  const auto tracker = run.start({with_meta, failing, only_meta, saver("other.pth", {})});
  std::ofstream("file") << "no folder";
  tracker->save_config("decoder_config.json", "{\"seed\": 1}\n");
  CHECK(read_file("data/decoder_config.json") == "{\"seed\": 1}\n");
  CHECK(read_file("meta/run1/decoder_config.json") == "{\"seed\": 1}\n");
  CHECK(read_file("{not_a_placeholder}/decoder_config.json") == "{\"seed\": 1}\n");
  CHECK(run.log.count("Error saving decoder_config.json: ") == 1);
}

}  // namespace
}  // namespace dalle2
