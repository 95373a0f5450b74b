// SPDX-License-Identifier: MIT
// What is fetched is compared with what is known of it, and is there as a whole or not at all.
#include "tracker/places/remote_file.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "net/digest.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// The bytes of `text`, two at a time.
ByteSource source_of(std::string text) {
  return [text = std::move(text), at = size_t{0}](char* buffer, size_t capacity) mutable {
    const size_t size = std::min({size_t{2}, capacity, text.size() - at});
    std::memcpy(buffer, text.data() + at, size);
    at += size;
    return size;
  };
}

std::string md5_base64(const std::string& text) {
  Hash hash(HashKind::kMd5);
  hash.add(text.data(), text.size());
  return base64(hash.bytes());
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a fetched file that is as expected takes the place of an older one") {
  const test::TempDir dir;
  const test::CapturedLog log;
  const std::string path = dir / "loaded.pth";
  write_file_atomically(path, "old");
  store_fetched(source_of("hello"),
                path,
                {.bytes = 5,
                 // FIPS 180-4's hash of these bytes, in capitals, as some pages show it
                 .sha256 = "2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824",
                 .md5_base64 = md5_base64("hello")},
                "the place");
  CHECK(read_file(path) == "hello");
  CHECK(log.count("Fetched the place (5 B in ") == 1);
}

TEST_CASE("another size, SHA-256 or MD5 leaves the older file as it was") {
  const test::TempDir dir;
  const std::string path = dir / "loaded.pth";
  write_file_atomically(path, "old");
  CHECK(message_of([&] { store_fetched(source_of("hello"), path, {.bytes = 6}, "P"); }) ==
        "P: 5 bytes arrived, 6 were announced\n  The file was not kept. Fetch it again.");
  const std::string zeros(64, '0');
  CHECK_THAT(message_of([&] { store_fetched(source_of("hello"), path, {.sha256 = zeros}, "P"); }),
             Catch::Contains("P: its SHA-256 is 2cf24dba") && Catch::Contains("expected " + zeros));
  CHECK_THAT(message_of([&] {
               store_fetched(source_of("hello"), path, {.md5_base64 = md5_base64("hallo")}, "P");
             }),
             Catch::Contains("P: its MD5 (base64) is XUFAKrxLKna5cZ2REBfFkg==, expected "));
  CHECK(read_file(path) == "old");
  CHECK(std::distance(fs::directory_iterator(dir / ""), fs::directory_iterator()) == 1);
}

TEST_CASE("a file of more bytes than its disk has left is refused before the first byte") {
  const test::TempDir dir;
  bool read = false;
  const ByteSource source = [&](char*, size_t) {
    read = true;
    return size_t{0};
  };
  CHECK_THAT(
      message_of([&] { store_fetched(source, dir / "f", {.bytes = uint64_t{1} << 60}, "P"); }),
      Catch::Contains("P: has 1.0 EiB, and the disk of ") && Catch::Contains("Make room"));
  CHECK_FALSE(read);
}

TEST_CASE("addresses of files are told apart, and what is none is refused") {
  CHECK(make_remote_file("https://u:canary@h/f.pth?canary").name() == "https://h/f.pth");
  CHECK(make_remote_file("s3://b/a b/f.pth").name() == "s3://b/a b/f.pth");
  CHECK(make_remote_file("hf://o/r/dir/f.pth").name() == "https://huggingface.co/o/r/dir/f.pth");
  CHECK(make_remote_file("hf://o/r@v1.0/f.pth").name() == "https://huggingface.co/o/r@v1.0/f.pth");
  CHECK(make_remote_file("hf://datasets/o/r/f.pth").name() ==
        "https://huggingface.co/datasets/o/r/f.pth");
  for (const char* url : {"hf://o/f.pth", "hf://o/r@/f.pth"}) {
    CHECK_THAT(message_of([&] { make_remote_file(url); }),
               Catch::StartsWith(std::string(url) + ": expected hf://OWNER/NAME/FILE"));
  }
  CHECK_THAT(message_of([] { make_remote_file("gs://b/f.pth"); }),
             Catch::Contains("expected an address that begins with https://"));
  CHECK_THAT(message_of([] { make_remote_file("http://192.0.2.1/f.pth"); }),
             Catch::Contains("plain http to another machine (http://192.0.2.1/f.pth) is refused"));
  CHECK_NOTHROW(make_remote_file("http://192.0.2.1/f.pth", {.allow_plain_http = true}));
  CHECK_NOTHROW(make_remote_file("http://127.0.0.1:8000/f.pth"));
  const test::AwsEnvironment environment;
  test::AwsEnvironment::set("AWS_ENDPOINT_URL_S3", "http://192.0.2.1:9000");
  CHECK_THAT(
      message_of([] { make_remote_file("s3://b/f.pth").check_login(); }),
      Catch::Contains("s3://b/f.pth: plain http to another machine (http://192.0.2.1:9000)"));
}

TEST_CASE("a path is no address, and a fetched file goes with its object") {
  const test::TempDir dir;
  const test::CapturedLog log;
  const std::string path = dir / "a.pth";
  write_file_atomically(path, "bytes");
  for (const char* scheme : {"", "file:", "file://", "FILE:"}) {
    CHECK(FetchedFile(scheme + path).path() == path);
  }
  CHECK(read_file(path) == "bytes");
  test::LoopbackServer server([](const auto&) { return test::http_reply(200, "bytes"); });
  std::string fetched, url = server.url("/a.pth");
  for (const char* scheme : {"http", "HTTP"}) {
    const FetchedFile file(url.replace(0, 4, scheme));
    fetched = file.path();
    CHECK(fs::path(fetched).filename() == "a.pth");
    CHECK(read_file(fetched) == "bytes");
  }
  CHECK_FALSE(fs::exists(fs::path(fetched).parent_path()));
}

}  // namespace
}  // namespace dalle2
