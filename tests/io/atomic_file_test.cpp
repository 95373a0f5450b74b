// SPDX-License-Identifier: MIT
#include "io/files/atomic_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <random>

#include "base/this_process.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;
using Catch::StartsWith;
namespace fs = std::filesystem;

namespace {

/// DALLE2_FAIL_AT for a scope.
class FailAt {
 public:
  explicit FailAt(const std::string& spec) { setenv("DALLE2_FAIL_AT", spec.c_str(), 1); }
  ~FailAt() { unsetenv("DALLE2_FAIL_AT"); }
  FailAt(const FailAt&) = delete;
  FailAt& operator=(const FailAt&) = delete;
};

std::string random_bytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string from_disk(const std::string& path) {
  std::string content;
  read_from_disk(path, [&](const char* piece, size_t size) { content.append(piece, size); });
  return content;
}

void save_in_ten_pieces(const std::string& path, const std::string& content) {
  AtomicFile file(path);
  for (size_t at = 0; at < content.size(); at += 900'000) file.write(content.data() + at, 900'000);
  file.commit();
}

/// Runs `body` in a child. @return its exit status
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      _exit(99);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("what is written in pieces of any size reads back whole") {
  const test::TempDir folder;
  const std::string content = random_bytes(13'000'000, 1);
  const std::string path = folder / "new/deep/file.bin";
  std::mt19937 random(2);
  AtomicFile file(path);
  for (size_t at = 0; at < content.size();) {
    const size_t size =
        std::min<size_t>(content.size() - at, random() % (random() % 3 == 0 ? 6'000'000 : 40));
    file.write(content.data() + at, size);
    at += size;
    CHECK(file.position() == at);
  }
  CHECK_FALSE(fs::exists(path));
  file.sync();
  CHECK(read_file(file.part_path()) == content);
  file.commit();
  CHECK(read_file(path) == content);
  CHECK_FALSE(fs::exists(file.part_path()));
}

TEST_CASE("an older file stays until the new one is whole") {
  const test::TempDir folder;
  const std::string path = folder / "checkpoint.pth";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new", 3);
    file.sync();
    CHECK(read_file(path) == "old");
  }
  CHECK(read_file(path) == "old");
  CHECK_FALSE(fs::exists(path + ".part"));
  write_file_atomically(path, "new");
  CHECK(read_file(path) == "new");
}

TEST_CASE("every failing call of a save leaves the old file and no part") {
  const test::TempDir folder;
  const std::string path = folder / "model.pth";
  const std::string content = random_bytes(9'000'000, 3);
  struct Case {
    const char* spec;
    bool in_place;  // the rename has happened
  };
  for (const Case& one : {Case{"open:1:eio", false},
                          Case{"open:1:enospc", false},
                          Case{"write:1:enospc", false},
                          Case{"write:2:eio", false},
                          Case{"write:3:enospc", false},
                          Case{"fsync:1:eio", false},
                          Case{"rename:1:eio", false},
                          Case{"dirsync:1:eio", true}}) {
    INFO(one.spec);
    write_file_atomically(path, "old");
    const FailAt fail_at(one.spec);
    CHECK_THAT(test::message_of<ResourceError>([&] { save_in_ten_pieces(path, content); }),
               StartsWith(path + ": cannot "));
    CHECK(read_file(path) == (one.in_place ? content : "old"));
    CHECK_FALSE(fs::exists(path + ".part"));
    save_in_ten_pieces(path, content);  // the hook strikes once
    CHECK(read_file(path) == content);
  }
}

TEST_CASE("a process killed at any call of a save leaves the old file or the new one") {
  const test::TempDir folder;
  const std::string path = folder / "model.pth";
  const std::string content = random_bytes(9'000'000, 4);
  for (const std::string spec :
       {"open:1", "write:1", "write:2", "write:3", "fsync:1", "rename:1", "dirsync:1"}) {
    INFO(spec);
    write_file_atomically(path, "old");
    const int status = in_child([&] {
      setenv("DALLE2_FAIL_AT", (spec + ":abort").c_str(), 1);
      save_in_ten_pieces(path, content);
    });
    CHECK(status == 137);
    CHECK(read_file(path) == (spec == "dirsync:1" ? content : "old"));
    CHECK(fs::exists(path + ".part") == (spec != "open:1" && spec != "dirsync:1"));
  }
}

TEST_CASE("a second name of a file costs no space and takes the place of what was there") {
  const test::TempDir folder;
  write_file_atomically(folder / "a.pth", "new");
  write_file_atomically(folder / "kept/b.pth", "old");
  link_file_atomically(folder / "a.pth", folder / "kept/b.pth");
  CHECK(read_file(folder / "kept/b.pth") == "new");
  CHECK(fs::equivalent(folder / "a.pth", folder / "kept/b.pth"));
  link_file_atomically(folder / "a.pth", folder / "kept/b.pth");  // both names are one file already
  CHECK_FALSE(fs::exists(folder / "kept/b.pth.part"));
  write_file_atomically(folder / "a.pth", "newer");
  CHECK(read_file(folder / "kept/b.pth") == "new");
  remove_file(folder / "kept/b.pth");
  remove_file(folder / "kept/b.pth");  // gone already
  CHECK_FALSE(fs::exists(folder / "kept/b.pth"));
}

TEST_CASE("a link or a removal that fails leaves the older file and no part") {
  const test::TempDir folder;
  for (const std::string spec : {"link:1:eio", "link:1:enospc", "rename:1:eio"}) {
    INFO(spec);
    write_file_atomically(folder / "a.pth", "new");
    write_file_atomically(folder / "b.pth", "old");
    const FailAt fail_at(spec);
    CHECK_THROWS_AS(link_file_atomically(folder / "a.pth", folder / "b.pth"), ResourceError);
    CHECK(read_file(folder / "b.pth") == "old");
    CHECK_FALSE(fs::exists(folder / "b.pth.part"));
  }
  const FailAt fail_at("unlink:1:eio");
  CHECK_THROWS_AS(remove_file(folder / "b.pth"), ResourceError);
  CHECK(read_file(folder / "b.pth") == "old");
}

TEST_CASE("a full disk, or a limit of file sizes, is a resource error that says what to do") {
  const test::TempDir folder;
  {
    const FailAt fail_at("write:1:enospc");
    CHECK_THROWS_WITH(write_file_atomically(folder / "big", "text"),
                      Catch::Contains("Free some space"));
  }
  // The kernel cuts writes short first.
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{300'000, 300'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(folder / "big", std::string(1'000'000, 'x'));
    } catch (const ResourceError& error) {
      _exit(std::string(error.what()).find("Raise the limit of file sizes") != std::string::npos
                ? 42
                : 41);
    }
  });
  CHECK(status == 42);
  CHECK_FALSE(fs::exists(folder / "big"));
  CHECK_FALSE(fs::exists(folder / "big.part"));
}

TEST_CASE("what cannot be written is refused by name") {
  const test::TempDir folder;
  fs::create_directory(folder / "taken");
  CHECK_THAT(test::message_of<DataError>([&] { write_file_atomically(folder / "taken", "x"); }),
             Contains("taken") && Contains("Is a directory"));
  test::put_file(folder / "file", "x");
  CHECK_THROWS_WITH(write_file_atomically(folder / "file/below", "x"), Contains("Not a directory"));
  CHECK_THROWS_WITH(write_file_atomically(folder / std::string(300, 'n'), "x"),
                    Contains("File name too long"));
  CHECK_THROWS_WITH(write_file_atomically("/proc/dalle2_test", "x"), Contains("/proc/dalle2_test"));
  fs::create_symlink(folder / "victim", folder / "linked.part");
  CHECK_THROWS_WITH(write_file_atomically(folder / "linked", "x"),
                    Contains("linked.part: cannot create the file"));  // the link is in the way
  CHECK_FALSE(fs::exists(folder / "victim"));
}

TEST_CASE("a device or a pipe is not replaced by a file") {
  const test::TempDir folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(write_file_atomically(pipe, "x"), Contains(pipe + ": is a device or a pipe"));
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("reading names the file and the reason") {
  const test::TempDir folder;
  CHECK_THAT(test::message_of<DataError>([&] { read_file(folder / "absent"); }),
             Contains("absent") && Contains("No such file"));
  CHECK_THROWS_WITH(read_file(folder.path()), Contains("Is a directory"));
  test::put_file(folder / "empty", "");
  CHECK(read_file(folder / "empty").empty());
}

TEST_CASE("copies are whole and make their folder") {
  const test::TempDir folder;
  const std::string content = random_bytes(1'234'567, 5);
  test::put_file(folder / "from", content);
  copy_file_atomically(folder / "from", folder / "x/y/to");
  CHECK(read_file(folder / "x/y/to") == content);
  CHECK_THROWS_AS(copy_file_atomically(folder / "absent", folder / "z"), DataError);
  CHECK_FALSE(fs::exists(folder / "z"));
  CHECK_FALSE(fs::exists(folder / "z.part"));
}

TEST_CASE("files of any length are written past the page cache and read from the disk") {
  // On a disk, and in memory, where there may be no direct calls.
  for (const std::string parent : {"", "/dev/shm"}) {
    if (!parent.empty() && access(parent.c_str(), W_OK) != 0) continue;
    const test::TempDir scratch;
    const std::string path =
        parent.empty() ? scratch / "file" : parent + "/dalle2_disk_io_" + std::to_string(getpid());
    for (const size_t size : {size_t{0},
                              size_t{1},
                              kDiskAlignment,
                              kDiskPieceBytes - 1,
                              kDiskPieceBytes,
                              kDiskPieceBytes + 1,
                              2 * kDiskPieceBytes + 3 * kDiskAlignment,
                              2 * kDiskPieceBytes + 5'000}) {
      INFO(path << ", " << size << " bytes");
      const std::string content = random_bytes(size, 1);
      write_file_atomically(path, content);
      CHECK(from_disk(path) == content);
      CHECK(read_file(path) == content);
      copy_file_atomically(path, path + ".copy");
      CHECK(read_file(path + ".copy") == content);
    }
    remove_file(path);
    remove_file(path + ".copy");
  }
}

TEST_CASE("each piece that is written to the disk, or read from it, is a sign of life") {
  const test::TempDir folder;
  const std::string path = folder / "file.bin", content(3 * kDiskPieceBytes, 'x');
  uint64_t before = signs_of_life();
  write_file_atomically(path, content);
  CHECK(signs_of_life() >= before + 3);
  before = signs_of_life();
  CHECK(from_disk(path) == content);
  CHECK(signs_of_life() >= before + 3);
}

TEST_CASE("a file that cannot be read from the disk is named") {
  const test::TempDir folder;
  CHECK_THAT(test::message_of<DataError>([&] { from_disk(folder / "absent"); }),
             Contains("absent: cannot be opened: No such"));
  CHECK_THROWS_WITH(from_disk(folder.path()), Contains("cannot be read: Is a directory"));
}

TEST_CASE("too many open files are a lack of resources, not damaged data") {
  const test::TempDir folder;
  write_file_atomically(folder / "here", "content");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::string said = test::message_of<ResourceError>([&] { read_file(folder / "here"); });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_THAT(said,
             Contains("here: cannot be opened: Too many open files") && Contains("ulimit -n"));
  CHECK(read_file(folder / "here") == "content");
}

TEST_CASE("the checksum is the CRC-32 of zip, in one go or piece by piece") {
  const std::string digits = "123456789";
  CHECK(crc32_of(0, digits.data(), 9) == 0xcbf43926);
  CHECK(crc32_of(crc32_of(0, digits.data(), 4), digits.data() + 4, 5) == 0xcbf43926);
  CHECK(crc32_of(0xcbf43926, nullptr, 0) == 0xcbf43926);
}
