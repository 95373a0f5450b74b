// SPDX-License-Identifier: MIT
#include "io/files/walk_folder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

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
