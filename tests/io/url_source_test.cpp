// SPDX-License-Identifier: MIT
#include "io/url_source.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/tar.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

std::string read_all(const ByteSource& source) {
  std::string text, buffer(1000, '\0');
  while (const size_t size = source(buffer.data(), buffer.size())) text.append(buffer, 0, size);
  return text;
}

}  // namespace

TEST_CASE("paths, file urls, http urls and commands give the same bytes") {
  const TempDir folder;
  const std::string path = folder / "a.bin", content(5000, 'x');
  write_file_atomically(path, content);
  LoopbackServer server([&](const HttpRequest& request) { return ranged_reply(request, content); });
  for (const std::string& url :
       {path, "file:" + path, "file://" + path, server.url("/a.bin"), "pipe:cat " + path}) {
    CHECK(read_all(open_source(url)) == content);
  }
}

TEST_CASE("a command that fails is an error at its end, a closed pipe is none") {
  CHECK_THROWS_WITH(read_all(open_source("pipe:echo text; exit 7")),
                    Contains("pipe:echo text; exit 7: the command failed with status 7"));
  CHECK(read_all(open_source("pipe:echo text; exit 141")) == "text\n");
}

TEST_CASE("what cannot be read is told with the schemes that can") {
  CHECK_THROWS_AS(open_source("s3://bucket/0.tar"), ConfigError);
  CHECK_THROWS_WITH(open_source("gs://bucket/0.tar"), Contains("gs://bucket/0.tar: only files"));
  CHECK_THROWS_AS(open_source("/absent/0.tar"), DataError);
}

TEST_CASE("a tar over http keeps the network's error") {
  LoopbackServer server([](const HttpRequest&) { return http_reply(404, ""); });
  const std::string url = server.url("/0.tar");
  CHECK_THROWS_AS(TarReader(open_source(url), url), HttpStatusError);
}
