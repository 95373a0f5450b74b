// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/event_file.h"
#include "io/image.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
  return files;
}

/// A tracker with data_path "data" in a folder of its own.
struct Run {
  test::TempDir folder;
  test::WorkingDirectory inside{folder.path()};
  test::CapturedLog log;
  TensorboardLogConfig tensorboard;

  Tracker start() {
    TrackerConfig config;
    config.data_path = "data";
    config.overwrite_data_path = true;
    config.log = tensorboard;
    LocalSaveConfig save;
    save.save_latest_to = "latest.pth";
    config.save = {save};
    Tracker tracker(config, decoder_placeholders(), /*dummy=*/false);
    tracker.init();
    return tracker;
  }
};

TEST_CASE("the tensorboard logger writes numbers, texts, pictures and captions as events") {
  Run run;
  Tracker tracker = run.start();
  tracker.log({{"Epoch", int64_t{3}}, {"loss", 0.5}, {"kind", std::string("warm")}}, 40);
  const std::string png = encode_png({1, 1, {1, 2, 3}});
  tracker.log_images({{png, "a cat"}, {png, ""}}, "Train Samples", 40);
  tracker.log_error("disk full");
  const std::vector<std::string> files = event_files("data/tensorboard");
  REQUIRE(files.size() == 1);
  const std::string events = read_file(files[0]);
  EventSummary record, pictures;
  record.add_scalar("Epoch", 3);
  record.add_scalar("loss", 0.5);
  record.add_text("kind", "warm");
  pictures.add_image("Train Samples/0", png);
  pictures.add_image("Train Samples/1", png);
  pictures.add_text("Train Samples/captions", "- 0: a cat\n");
  CHECK_THAT(events,
             Contains(record.bytes()) && Contains(pictures.bytes()) && Contains("disk full"));
  CHECK(fs::exists("data/log.jsonl"));
  CHECK(fs::exists("data/images/40_Train Samples_0.png"));
  CHECK(run.log.count("tensorboard --logdir data/tensorboard") == 1);
  CHECK(run.log.count("\"loss\"") == 0);  // not verbose
}

TEST_CASE("each start of a tensorboard run adds a file, in the folder that the config names") {
  Run run;
  run.tensorboard.log_dir = "boards/mine";
  run.tensorboard.auto_resume = true;
  run.tensorboard.verbose = true;
  for (int start = 0; start < 2; ++start) run.start().log({{"loss", 0.5}}, 1);
  CHECK(event_files("boards/mine").size() == 2);
  CHECK_FALSE(fs::exists("data/tensorboard"));
  CHECK(run.log.count("{\"loss\": 0.5, \"step\": 1}") == 2);
  CHECK_THAT(read_file("data/auto_resume.json"), Contains("TensorboardLogger"));
}

TEST_CASE("a folder of events that cannot be made ends the start") {
  Run run;
  std::ofstream("boards") << "a file";
  run.tensorboard.log_dir = "boards/mine";
  CHECK_THROWS_WITH(run.start(), "boards/mine: the folder cannot be made: Not a directory");
}

}  // namespace
}  // namespace dalle2
