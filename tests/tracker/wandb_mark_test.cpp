// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_mark.h"

#include <catch2/catch.hpp>
#include <string>

#include "support/full_disk.h"
#include "support/temp_dir.h"

namespace dalle2 {

TEST_CASE("a mark is of one run, and of the last write") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  CHECK_FALSE(WandbMark(path).read("one"));
  {
    WandbMark mark(path);
    mark.write("one", 4);
    mark.write("one", 1234);
  }
  CHECK(WandbMark(path).read("one") == 1234);
  CHECK_FALSE(WandbMark(path).read("other"));
  WandbMark(path).write("a", 7);  // a shorter line over a longer one
  CHECK(WandbMark(path).read("a") == 7);
  test::put_file(path, "{\"run_id\": \"a\", \"recor");
  CHECK_FALSE(WandbMark(path).read("a"));
  WandbMark(path).remove();
  CHECK_FALSE(WandbMark(path).read("a"));
}

TEST_CASE("a mark that cannot be written anew stays what it was") {
  const test::TempDir folder;
  const std::string path = folder / "mark.json";
  WandbMark(path).write("one", 4);
  {
    const test::FullDisk full(0);
    WandbMark(path).write("one", 9);
  }
  CHECK(WandbMark(path).read("one") == 4);
}

}  // namespace dalle2
