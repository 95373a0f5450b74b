// SPDX-License-Identifier: MIT
#include "io/files/writable.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "support/temp_dir.h"

using namespace dalle2;
namespace fs = std::filesystem;

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
