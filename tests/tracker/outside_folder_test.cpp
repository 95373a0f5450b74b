// SPDX-License-Identifier: MIT
// What a run writes outside of its folder, and folders that are copied or moved.
#include <catch2/catch.hpp>

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
