// SPDX-License-Identifier: MIT
#include "tracker/places/fetch.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "io/files/atomic_file.h"
#include "net/base64.h"
#include "net/sha256.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

void check_space(const std::string& path, uint64_t bytes, const std::string& name) {
  std::error_code error;
  const fs::space_info space = fs::space(fs::absolute(path).parent_path(), error);
  if (error || space.available >= bytes) return;
  throw ResourceError("{}: has {}, and the disk of {} has {} left\n  Make room there.",
                      name,
                      human_bytes(bytes),
                      path,
                      human_bytes(space.available));
}

void check_hash(const char* kind,
                const std::string& got,
                const std::string& expected,
                const std::string& name) {
  if (got == expected) return;
  throw DataError(
      "{}: its {} is {}, expected {}\n  The file was not kept: it was damaged on the way, or it is "
      "a different one.",
      name,
      kind,
      got,
      expected);
}

}  // namespace

void store_fetched(const ByteSource& source,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name) {
  constexpr size_t kPiece = size_t{1} << 20;
  if (expected.bytes) check_space(path, *expected.bytes, name);
  const Timer timer;
  AtomicFile file(path);
  Hash sha256, md5(HashKind::kMd5);
  std::vector<char> piece(kPiece);
  while (const size_t size = source(piece.data(), piece.size())) {
    sha256.add(piece.data(), size);
    if (!expected.md5_base64.empty()) md5.add(piece.data(), size);
    file.write(piece.data(), size);
  }
  const uint64_t bytes = file.position();
  if (expected.bytes && bytes != *expected.bytes) {
    throw DataError(
        "{}: {} bytes arrived, {} were announced\n  The file was not kept. Fetch it again.",
        name,
        bytes,
        *expected.bytes);
  }
  if (expected.sha256) check_hash("SHA-256", sha256.hex(), lower_case(*expected.sha256), name);
  if (!expected.md5_base64.empty()) {
    check_hash("MD5 (base64)", base64(md5.bytes()), expected.md5_base64, name);
  }
  file.commit();
  log_info("track",
           "Fetched {} ({} in {}) as {}",
           name,
           human_bytes(bytes),
           human_duration(timer.seconds()),
           path);
}

void store_fetched(HttpGet request,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name) {
  HttpStream stream(std::move(request));
  store_fetched([&stream](char* buffer, size_t capacity) { return stream.read(buffer, capacity); },
                path,
                expected,
                name);
}

}  // namespace dalle2
