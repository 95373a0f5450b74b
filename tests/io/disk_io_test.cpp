// SPDX-License-Identifier: MIT
#include "io/files/disk_io.h"

#include "base/error.h"
#include "base/this_process.h"
#include "io/files/atomic_file.h"
#include "support/temp_dir.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <random>

using namespace dalle2;
using Catch::Contains;

namespace {

std::string random_bytes(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string from_disk(const std::string& path) {
  std::string content;
  read_from_disk(path, [&](const char* piece, size_t size) { content.append(piece, size); });
  return content;
}

}  // namespace

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
      const std::string content = random_bytes(size);
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
  CHECK_THROWS_AS(from_disk(folder / "absent"), DataError);
  CHECK_THROWS_WITH(from_disk(folder / "absent"), Contains("absent: cannot be opened: No such"));
  CHECK_THROWS_WITH(from_disk(folder.path()), Contains("cannot be read: Is a directory"));
}

TEST_CASE("too many open files are a lack of resources, not damaged data") {
  const test::TempDir folder;
  write_file_atomically(folder / "here", "content");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string said;
  try {
    read_file(folder / "here");
  } catch (const ResourceError& error) {
    said = error.what();
  }
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
