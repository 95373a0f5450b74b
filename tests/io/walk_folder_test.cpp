// SPDX-License-Identifier: MIT
#include "io/files/walk_folder.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/new_shards.h"
#include "io/files/writable.h"
#include "support/broken_listing.h"
#include "support/temp_dir.h"

using namespace dalle2;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

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

/// The files below `top`, by name.
Walked data_of(const std::string& top, Below below) {
  Walked result;
  result.end = walk_data(top, below, [&](const fs::directory_entry& entry) {
    if (entry.is_regular_file())
      result.names.push_back(entry.path().lexically_relative(top).string());
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

TEST_CASE("data is walked behind links, each folder once, without names that begin with a dot") {
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
  const std::vector<std::string> all = {"a", "again/d", "again/deep/e", "again/onward/f", "b/c"};
  for (const Below below : {Below::kNothing, Below::kAll, Below::kReadable}) {
    const Walked data = data_of(folder / "top", below);
    CHECK(data.names == (below == Below::kNothing ? std::vector<std::string>{"a"} : all));
    CHECK(data.end.opened);
    CHECK_FALSE(data.end.error);
  }
  const WalkEnd absent = data_of(folder / "absent", Below::kAll).end;
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
  const Walked data = data_of(folder / "top", Below::kReadable);
  CHECK(data.names == std::vector<std::string>{"a", "b/c", "run.json"});
  CHECK(data.end.of_runs == std::vector<std::string>{
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

namespace {

/// The answer of a user without rights: root may write everywhere.
std::string answer_of_nobody(const std::string& folder) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
    const std::string answer = why_not_writable(folder).value_or("");
    ::_exit(::write(ends[1], answer.data(), answer.size()) < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  char text[4096];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(status == 0);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

TEST_CASE("the room on a disk is that of the nearest folder that is there") {
  const test::TempDir folder;
  struct statvfs disk = {};
  REQUIRE(::statvfs(folder.path().c_str(), &disk) == 0);
  const auto left = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  constexpr double kOfOthers = 1 << 30;  // what other programs write meanwhile
  for (const std::string& place : {folder.path(), folder / "a/b/c"}) {
    const auto found = static_cast<double>(free_disk_bytes(place).value());
    CHECK(std::abs(found - left) < kOfOthers);
  }
  CHECK_FALSE(free_disk_bytes("/proc/not/there"));  // which counts none
}

TEST_CASE("a folder that is there or can be made is writable, and is not made by asking") {
  const test::TempDir folder;
  CHECK_FALSE(why_not_writable(folder.path()));
  CHECK_FALSE(why_not_writable(folder / "a/b/c"));
  CHECK_FALSE(why_not_writable(""));
  CHECK_FALSE(why_file_not_writable(folder / "a/file.pth"));
  CHECK_FALSE(why_file_not_writable("file.pth"));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a file in the way of a folder is named, and a folder in the way of a file") {
  const test::TempDir folder;
  test::put_file(folder / "file", "");
  const std::string expected = "'" + (folder / "file") + "' is a file; expected a folder";
  CHECK(why_not_writable(folder / "file") == expected);
  CHECK(why_not_writable(folder / "file/below/it") == expected);
  CHECK(why_file_not_writable(folder / "file/x.pth") == expected);
  CHECK(why_file_not_writable(folder.path()) ==
        "'" + folder.path() + "' is a folder, a file is expected");
  CHECK(why_file_not_writable("/dev/null") ==
        "'/dev/null' is a device or a pipe, which a file must not replace");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(why_file_not_writable(folder / "pipe") ==
        "'" + (folder / "pipe") + "' is a device or a pipe, which a file must not replace");
}

TEST_CASE("a folder without the right to write is named with the reason") {
  const test::TempDir folder;
  fs::create_directory(folder / "closed");
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  REQUIRE(::chmod((folder / "closed").c_str(), 0555) == 0);
  CHECK(answer_of_nobody(folder / "closed/new/folder") ==
        "'" + (folder / "closed") + "' is not writable: Permission denied");
}

TEST_CASE("a place that takes nothing, whoever asks, is named with the reason") {
  CHECK_THAT(why_not_writable("/proc/runs/x").value_or(""),
             Catch::Matchers::Contains("'/proc' is not writable"));
  const test::TempDir folder;
  fs::create_symlink(folder / "gone", folder / "link");
  CHECK(why_not_writable(folder / "link/x") ==
        "'" + (folder / "link") + "' is a link to '" + (folder / "gone") +
            "', which does not exist: mount or make that first");
}

namespace {

using Names = std::vector<std::string>;

Names set_below(const std::string& folder) {
  Names names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void make(const std::string& path) {
  write_file_atomically(path, "made");
}

}  // namespace

TEST_CASE("new shards take their place all at once, and without that the folder is as it was") {
  const test::TempDir folder;
  const std::string out = folder / "deep/out", part = NewShards::folder(out);
  {
    NewShards shards(out, /*overwrite=*/false);
    make(part + "/000000.tar");
    CHECK(set_below(out) == Names{"shards.part/000000.tar"});
  }
  CHECK_FALSE(fs::exists(out));
  NewShards shards(out, false);
  for (const char* name : {"/000000.tar", "/img_emb/000000.npy", "/of_a_lost_shard"})
    make(part + name);
  CHECK(shards.finish({"000000.tar", "img_emb/000000.npy"}).empty());
  CHECK(fs::exists(out + "/000000.tar"));
  CHECK(fs::exists(out + "/img_emb/000000.npy"));
}

TEST_CASE("what a killed command left is removed, but not that of one which still writes") {
  const test::TempDir folder;
  const std::string out = folder / "out";
  make(NewShards::folder(out) + "/000007.tar");
  std::optional<NewShards> first(std::in_place, out, false);
  CHECK(set_below(out).empty());
  CHECK_THROWS_WITH(NewShards(out, true), Contains("another process makes shards there"));
  first.reset();
  CHECK_NOTHROW(NewShards(out, true));
}

TEST_CASE("shards, their arrays and manifests that are there are replaced only if asked for") {
  const test::TempDir folder;
  const std::string out = folder / "out", part = NewShards::folder(out);
  const Names set = {
      "000000.tar", "000020.tar", "a.tar", "img_emb/img_emb_000000.npy", "latents.json"};
  for (const std::string& name : set) make(out + "/" + name);
  const Names others = {"old.tar", "img_emb_000000.npy", "x/samples.npy", "y/y.tar", "y/z_0.npy"};
  for (const std::string& name : others) make(out + "/" + name);
  const Names all = set_below(out);
  CHECK_THROWS_WITH(NewShards(out, false, {"a.tar"}),
                    Contains("found 000000.tar, 000020.tar, a.tar, img_emb/img_emb_000000.npy, "
                             "latents.json\n") &&
                        Contains("--overwrite"));
  CHECK(set_below(out) == all);
  {
    NewShards shards(out, true, {"a.tar"});
    write_file_atomically(part + "/000000.tar", "again");
    CHECK(set_below(out).size() == all.size() + 1);
    CHECK(shards.finish({"000000.tar"}) == set);
  }
  CHECK(read_file(out + "/000000.tar") == "again");
  Names left = others;
  left.emplace_back("000000.tar");
  std::sort(left.begin(), left.end());
  CHECK(set_below(out) == left);
}

TEST_CASE("a file that came meanwhile is not replaced") {
  const test::TempDir folder;
  const std::string out = folder / "out";
  NewShards shards(out, false);
  make(NewShards::folder(out) + "/notes.json");
  write_file_atomically(out + "/notes.json", "mine");
  CHECK_THROWS_WITH(shards.finish({"notes.json"}), Contains("holds notes.json"));
  CHECK(read_file(out + "/notes.json") == "mine");
}
