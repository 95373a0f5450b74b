// SPDX-License-Identifier: MIT
#include "io/files/walk_folder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "io/files/folder_names.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

using namespace dalle2;
namespace fs = std::filesystem;

namespace {

struct Walked {
  std::vector<std::string> names;
  WalkEnd end;
};

Walked walked(const std::string& folder, Below below) {
  Walked result;
  result.end = walk_folder(folder, below, [&](const fs::directory_entry& entry) {
    result.names.push_back(entry.path().lexically_relative(folder).string());
  });
  std::sort(result.names.begin(), result.names.end());
  return result;
}

}  // namespace

TEST_CASE("a folder is walked through, with those below it or without") {
  const test::TempDir folder;
  fs::create_directories(folder / "b/d");
  for (const char* name : {"a", "b/c", "b/d/e"}) test::put_file(folder / name, "x");
  const Walked flat = walked(folder.path(), Below::kNothing);
  CHECK(flat.names == std::vector<std::string>{"a", "b"});
  CHECK(flat.end.opened);
  CHECK_FALSE(flat.end.error);
  for (const Below below : {Below::kAll, Below::kReadable}) {
    CHECK(walked(folder.path(), below).names ==
          std::vector<std::string>{"a", "b", "b/c", "b/d", "b/d/e"});
  }
}

TEST_CASE(
    "data is walked behind links, each folder once, and without names that begin with a dot") {
  const test::TempDir folder;
  for (const char* name : {"top/a",
                           "top/.hidden",
                           "top/._a",
                           "top/.ipynb_checkpoints/a-checkpoint",
                           "top/b/c",
                           "elsewhere/d",
                           "elsewhere/deep/e",
                           "other/f"}) {
    fs::create_directories(fs::path(folder / name).parent_path());
    test::put_file(folder / name, "x");
  }
  const auto link = [&](const char* target, const char* name) {
    fs::create_directory_symlink(target, folder / name);
  };
  link("../elsewhere", "top/more");
  link("../elsewhere", "top/again");           // the first by name is taken
  link("../../elsewhere/deep", "top/b/deep");  // lies in it
  link(".", "top/loop");
  link("..", "top/up");
  link("../other", "elsewhere/onward");
  link("../elsewhere", "other/back");
  const auto names_of = [&](Below below) {
    std::vector<std::string> names;
    const WalkEnd end = walk_data(folder / "top", below, [&](const fs::directory_entry& entry) {
      if (entry.is_regular_file()) {
        names.push_back(entry.path().lexically_relative(folder / "top").string());
      }
    });
    CHECK(end.opened);
    CHECK_FALSE(end.error);
    std::sort(names.begin(), names.end());
    return names;
  };
  for (const Below below : {Below::kAll, Below::kReadable}) {
    CHECK(names_of(below) ==
          std::vector<std::string>{"a", "again/d", "again/deep/e", "again/onward/f", "b/c"});
  }
  CHECK(names_of(Below::kNothing) == std::vector<std::string>{"a"});
  const WalkEnd absent = walk_data(folder / "absent", Below::kAll, [](const auto&) {});
  CHECK_FALSE(absent.opened);
  CHECK(absent.error == std::errc::no_such_file_or_directory);
}

TEST_CASE("a walk over data does not enter the folders of runs") {
  const test::TempDir folder;
  for (const char* name : {"top/a",
                           "top/run.json",  // a run's itself
                           "top/b/c",
                           "top/b/run/run.json",
                           "top/b/run/images/d",
                           "top/b/wandb/offline-run-1/files/media/e",
                           "elsewhere/run.json",
                           "elsewhere/f"}) {
    fs::create_directories(fs::path(folder / name).parent_path());
    test::put_file(folder / name, "x");
  }
  fs::create_directory_symlink("../elsewhere", folder / "top/link");
  std::vector<std::string> names;
  const WalkEnd end =
      walk_data(folder / "top", Below::kReadable, [&](const fs::directory_entry& entry) {
        if (entry.is_regular_file())
          names.push_back(entry.path().lexically_relative(folder / "top").string());
      });
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"a", "b/c", "run.json"});
  CHECK(end.of_runs == std::vector<std::string>{
                           folder / "top/b/run", folder / "top/b/wandb", folder / "top/link"});
}

TEST_CASE("a folder that is not there is not an empty one") {
  const test::TempDir folder;
  for (const Below below : {Below::kNothing, Below::kAll, Below::kReadable}) {
    const Walked absent = walked(folder / "absent", below);
    CHECK_FALSE(absent.end.opened);
    CHECK(absent.end.error == std::errc::no_such_file_or_directory);
    CHECK(absent.names.empty());
  }
}

TEST_CASE("a listing that breaks off is not at its end") {
  const test::TempDir folder;
  for (const char* name : {"a", "b", "c"}) test::put_file(folder / name, "x");
  for (const Below below : {Below::kNothing, Below::kAll, Below::kReadable}) {
    const test::BrokenListing broken;
    const Walked cut = walked(folder.path(), below);
    CHECK(cut.end.opened);
    CHECK(cut.end.error == std::errc::io_error);
    CHECK(cut.names.size() == 1);
  }
}

TEST_CASE("a folder has one canonical path, however it is written") {
  const test::TempDir dir;
  const fs::path root = fs::canonical(dir.path());
  fs::create_directories(root / "a/b");
  fs::create_directories(root / "else/deep");
  fs::create_directory_symlink(root / "else/deep", root / "link");
  fs::create_directory_symlink(root / "circle", root / "circle");
  CHECK(canonical_folder(root / "a/b") == root / "a/b");
  CHECK(canonical_folder(root / "a/b/") == root / "a/b");
  CHECK(canonical_folder(root / "a/./../a/b/.") == root / "a/b");
  CHECK(canonical_folder(root / "link") == root / "else/deep");
  CHECK(canonical_folder(root / "link/..") == root / "else");
  CHECK(canonical_folder(root / "link/../new/run/") == root / "else/new/run");
  CHECK(canonical_folder(root / "absent/") == root / "absent");
  CHECK(canonical_folder("/") == "/");
  CHECK(canonical_folder(".") == fs::current_path());
  CHECK(canonical_folder(root / "circle").empty());
}

TEST_CASE("nothing is in a folder that has no path") {
  CHECK(is_in_folder("/a/b", "/a"));
  CHECK(is_in_folder("/a", "/a"));
  CHECK_FALSE(is_in_folder("/ab", "/a"));
  CHECK_FALSE(is_in_folder("/a/b", ""));
}
