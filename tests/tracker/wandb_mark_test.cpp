// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_mark.h"

#include <catch2/catch.hpp>
#include <string>

#include "io/files/atomic_file.h"
#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

/// -1: nothing is said of the run.
int64_t records_of(const std::string& path, const std::string& run_id) {
  return WandbMark(path).read(run_id).value_or(WandbProgress{-1}).records;
}

}  // namespace

TEST_CASE("a mark is of one run, and of the last write") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  CHECK_FALSE(WandbMark(path).read("one"));
  {
    WandbMark mark(path);
    mark.write("one", {4, 5});
    mark.write("one", {1234, 1300});
  }
  CHECK(records_of(path, "one") == 1234);
  CHECK(WandbMark(path).read("one")->next_step == 1300);
  CHECK_FALSE(WandbMark(path).read("other"));
  test::put_file(path, "{\"run_id\": \"a\", \"recor");
  CHECK_FALSE(WandbMark(path).read("a"));
  WandbMark(path).write("a", {7, 7});  // behind the part of a line
  CHECK(records_of(path, "a") == 7);
  WandbMark(path).remove();
  CHECK_FALSE(WandbMark(path).read("a"));
}

TEST_CASE("two loggers share a file of marks, and neither changes the other's") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  for (const int64_t start : {0, 10}) {
    WandbMark first(path), second(path);
    first.write("first", {start, start});
    second.write("the second", {start + 1, start + 1});
    first.write("first", {start + 2, start + 2});
    second.write("the second", {start + 3, start + 3});
    CHECK(records_of(path, "first") == start + 2);
    CHECK(records_of(path, "the second") == start + 3);
  }
  const std::string text = read_file(path);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("a mark of version 0.1 counts until there is a new one") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  test::put_file(path, "{\"run_id\": \"one\", \"records\":                   12}\n");
  CHECK(records_of(path, "one") == 12);
  CHECK_FALSE(WandbMark(path).read("one")->next_step);
  WandbMark(path).write("one", {13, 20});
  CHECK(records_of(path, "one") == 13);
}

TEST_CASE("a mark that cannot be written anew stays what it was") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  WandbMark(path).write("one", {4, 4});
  const std::string before = read_file(path);
  {
    const test::FullDisk full(before.size() + 10);
    WandbMark(path).write("other", {9, 9});
    CHECK(read_file(path) == before);  // no part of a line
  }
  {
    const test::FullDisk full(0);
    WandbMark(path).write("one", {9, 9});
  }
  CHECK(records_of(path, "one") == 4);
}

}  // namespace dalle2
