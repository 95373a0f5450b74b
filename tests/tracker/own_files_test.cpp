// SPDX-License-Identifier: MIT
#include "tracker/run_folder/own_files.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/temp_dir.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::put;

const std::string kOwnId = "0f8fad5b-d9cb-469f-a165-70867728950e";
const std::string kOtherId = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

TEST_CASE("a target that another run writes to is set aside, and then left alone") {
  const test::TempDir folder;
  const std::string target = folder / "latest.pth";
  OwnFiles files(folder / "out");
  files.start_over(kOwnId, "", {});
  CHECK_FALSE(files.claim(target));
  put(target, "first");
  CHECK_FALSE(files.claim(target, kOwnId));
  put(target, "of another run");
  const std::optional<std::string> moved = files.claim(target, kOtherId);
  REQUIRE(moved);
  CHECK(read_file(*moved) == "of another run");
  put(target, "second");
  CHECK_FALSE(files.claim(target, kOwnId));
  put(target, "of another run again");
  CHECK_THROWS_WITH(files.claim(target, kOtherId),
                    Catch::Contains("is written by another run too"));
  CHECK_THROWS_WITH(files.claim(target, kOtherId),
                    Catch::Contains("is written by another run too"));
  CHECK(read_file(target) == "of another run again");
}

TEST_CASE("what another run's saver wrote into the run's folder is set aside, not overwritten") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directories("out");
  OwnFiles("out").start_over(kOwnId, "", {});
  OwnFiles files("out");
  CHECK_FALSE(files.claim("out/best.pth", kOwnId));
  put("out/best.pth", "of another run");
  OwnFiles again("out");  // a later start, which has recorded the path
  REQUIRE(again.contains("out/best.pth"));
  CHECK(again.claim("out/best.pth", kOtherId) == "out/best.1.pth");
  CHECK(read_file("out/best.1.pth") == "of another run");
  put("out/best.pth", "and again");
  CHECK_THROWS_WITH(again.claim("out/best.pth", kOtherId),
                    Catch::Contains("is written by another run too"));
  CHECK(again.claim("out/best.pth", kOtherId, /*must_write=*/true) == "out/best.2.pth");
}

TEST_CASE("the snapshots of a copied folder are the copy's own") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directories("a/snapshots");
  OwnFiles original("a");
  original.start_over(kOwnId, "", {"a/checkpoint.pth", "a/snapshots"});
  fs::copy("a", "b", fs::copy_options::recursive);
  OwnFiles("b").rename(kOtherId);
  const OwnFiles copy("b");
  CHECK_FALSE(copy.is_of_another_run("b/snapshots/epoch0.pth", kOwnId));
  CHECK_FALSE(copy.is_of_another_run("b/checkpoint.pth", kOwnId));
  CHECK_FALSE(copy.is_of_another_run("b/checkpoint.pth", kOtherId));
  CHECK(copy.is_of_another_run("b/unknown.pth", kOwnId));
  CHECK(OwnFiles("a").is_of_another_run("a/snapshots/epoch0.pth", kOtherId));
}

TEST_CASE("a record of an earlier version names no earlier ids: its files are its own") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directories("out");
  put("out/targets.json",
      fmt::format(R"({{"run_id": "{}", "data_path": "{}", "paths": ["best.pth"]}})",
                  kOtherId,
                  (fs::path(folder.path()) / "out").string()));
  put("out/best.pth", "of the original");
  OwnFiles copy("out");
  CHECK_FALSE(copy.claim("out/best.pth", kOwnId));
  copy.start_over(kOtherId, "", {"out/best.pth"});  // of this version
  CHECK(copy.claim("out/best.pth", kOwnId) == "out/best.1.pth");
}

TEST_CASE("files in a copied folder keep the original's id, and are the copy's own") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directories("a");
  OwnFiles original("a");
  original.start_over(kOwnId, "", {});
  put("a/latest.pth", "of the original");
  CHECK_FALSE(original.claim("a/latest.pth", kOwnId));
  fs::copy("a", "b");
  OwnFiles("b").rename(kOtherId);
  OwnFiles copy("b");
  REQUIRE(copy.run_id() == kOtherId);
  CHECK_FALSE(copy.claim("b/latest.pth", kOwnId));
  CHECK(read_file("b/latest.pth") == "of the original");
  copy.start_over(kOtherId, "", {"b/latest.pth"});  // another run
  CHECK(copy.claim("b/latest.pth", kOwnId) == "b/latest.1.pth");
}

TEST_CASE("a file that names this run is its own though no record lists it") {
  const test::TempDir folder;
  const std::string target = folder / "latest.pth";
  OwnFiles files(folder / "out");
  files.start_over(kOwnId, "", {});
  put(target, "written, and not yet recorded");
  CHECK_FALSE(files.claim(target, kOwnId));
  CHECK(read_file(target) == "written, and not yet recorded");
}

TEST_CASE("a moved folder keeps the id of its run, a copy is known as one") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directories("a");
  OwnFiles("a").start_over(kOwnId, "", {});
  CHECK_FALSE(OwnFiles("a").is_copy());
  fs::copy("a", "b");
  CHECK(OwnFiles("b").run_id() == kOwnId);
  CHECK(OwnFiles("b").is_copy());
  fs::create_directory_symlink("a", "link");
  CHECK_FALSE(OwnFiles("link").is_copy());
  fs::remove_all("a");
  CHECK_FALSE(OwnFiles("b").is_copy());  // moved
  fs::create_directories("a");
  OwnFiles("a").start_over(kOtherId, "", {});
  CHECK_FALSE(OwnFiles("b").is_copy());  // another run is there now
  OwnFiles copy("b");
  copy.rename(kOtherId);
  CHECK_FALSE(OwnFiles("b").is_copy());
  CHECK(OwnFiles("b").run_id() == kOtherId);
}

TEST_CASE("the id of the mark counts where the record has none") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  CHECK(OwnFiles("out", kOwnId).run_id() == kOwnId);
  put("out/targets.json", R"({"run_id": "no id", "paths": []})");
  CHECK(OwnFiles("out", kOwnId).run_id() == kOwnId);
  OwnFiles("out").start_over(kOtherId, "", {});
  CHECK(OwnFiles("out", kOwnId).run_id() == kOtherId);
}

TEST_CASE(
    "a file that names no run, at a path where another run has renamed this one's, is that run's") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  {
    OwnFiles own("first");
    own.start_over("aaa", "", {});
    own.claim("shared/0.png");
    own.claim("shared/1.png");
    put("shared/0.png", "of the first");
    put("shared/1.png", "of the first");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // times of files are coarse
  {
    OwnFiles own("second");
    own.start_over("bbb", "", {});
    CHECK(own.claim("shared/0.png") == "shared/0.1.png");
    put("shared/0.png", "of the second");
  }
  OwnFiles own("first");
  CHECK(own.is_taken_over("shared/0.png"));
  CHECK_FALSE(own.is_taken_over("shared/1.png"));
  CHECK_FALSE(own.claim("shared/1.png"));
  CHECK(own.claim("shared/0.png") == "shared/0.2.png");
  CHECK(read_file("shared/0.2.png") == "of the second");
  put("shared/0.png", "of the first again");
  CHECK_FALSE(own.claim("shared/0.png"));  // known now
  CHECK_FALSE(OwnFiles("first").claim("shared/0.png"));
}

TEST_CASE("what is set aside gets the first free number, before the ending of a file") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  for (const char* content : {"first", "second"}) {
    put("out/latest.pth", content);
    put("out/snapshots/x.pth", content);
    put("out/none", content);
    set_aside("out/latest.pth");
    set_aside("out/snapshots");
    set_aside("out/none");
  }
  CHECK(read_file("out/latest.1.pth") == "first");
  CHECK(read_file("out/latest.2.pth") == "second");
  CHECK(read_file("out/snapshots.2/x.pth") == "second");
  CHECK(read_file("out/none.2") == "second");
  CHECK_FALSE(fs::exists("out/latest.pth"));
}

TEST_CASE("nothing, an empty file and an empty folder are left where they are") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  put("log.jsonl", "");
  fs::create_directory("images");
  for (const char* path : {"absent", "log.jsonl", "images"}) CHECK_FALSE(set_aside(path));
  CHECK(fs::exists("log.jsonl"));
}

TEST_CASE("a link is renamed, not what it points to, even if that is gone") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  put("kept.pth", "kept");
  fs::create_symlink("kept.pth", "latest.pth");
  fs::create_symlink("gone.pth", "best.pth");
  CHECK(set_aside("latest.pth") == "latest.1.pth");
  CHECK(set_aside("best.pth") == "best.1.pth");
  CHECK(read_file("kept.pth") == "kept");
  CHECK(fs::is_symlink("latest.1.pth"));
}

TEST_CASE("what cannot be renamed is told with the reason and what to do") {
  CHECK_THROWS_WITH(
      set_aside("/proc/self/fd"),
      Catch::StartsWith("'/proc/self/fd' belongs to another run and cannot be renamed: ") &&
          Catch::Contains("Move it away, or choose another place"));
}

TEST_CASE("a run knows the files it wrote, also when its folder has moved, and no others") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  {
    OwnFiles own("out");
    CHECK_FALSE(own.recorded());
    own.start_over(kOwnId, "base.pth", {"out/checkpoint.pth"});
    put("latest.pth", "another run's");
    CHECK(own.claim("latest.pth") == "latest.1.pth");
    put("latest.pth", "ours");
    CHECK_FALSE(own.claim("./latest.pth"));
    own.claim("out/a/best.pth");
  }
  fs::rename("out", "moved");
  OwnFiles own("moved/");
  CHECK(own.recorded());
  CHECK(own.contains("moved/checkpoint.pth"));
  CHECK(own.contains("moved/a/best.pth"));
  CHECK(own.contains(folder / "latest.pth"));
  CHECK_FALSE(own.contains("out/checkpoint.pth"));
  CHECK_FALSE(own.contains("best.pth"));
  CHECK(own.began_from("./base.pth"));
  CHECK_FALSE(own.began_from("latest.pth"));
  CHECK(read_file("latest.pth") == "ours");
}

TEST_CASE("a base that moved with the run's folder, or has another name by a link, is the same") {
  const test::TempDir folder;
  const test::WorkingDirectory inside(folder.path());
  fs::create_directory("project");
  put("project/base.pth", "base");
  put("other.pth", "another");
  fs::create_directory("project/out");
  OwnFiles("project/out").start_over(kOwnId, "project/base.pth", {});
  fs::rename("project", "moved");
  fs::create_symlink("moved/base.pth", "link.pth");
  const OwnFiles own("moved/out");
  CHECK(own.began_from("moved/base.pth"));
  CHECK(own.began_from("link.pth"));
  CHECK_FALSE(own.began_from("other.pth"));
  CHECK_FALSE(own.began_from("https://host/base.pth"));
}

TEST_CASE("a damaged record knows of no file: it is set aside rather than overwritten") {
  for (const char* record :
       {"", "{", "[]", "{\"paths\": 3}", "{\"paths\": [1], \"began_from\": 2}"}) {
    CAPTURE(record);
    const test::TempDir folder;
    const test::WorkingDirectory inside(folder.path());
    put("out/targets.json", record);
    put("latest.pth", "whose?");
    OwnFiles own("out");
    CHECK(own.recorded());
    CHECK(own.claim("latest.pth") == "latest.1.pth");
  }
}

}  // namespace
}  // namespace dalle2
