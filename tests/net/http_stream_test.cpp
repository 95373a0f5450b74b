// SPDX-License-Identifier: MIT
#include "net/http_transfer.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/seconds_of.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// Bytes that differ from place to place.
std::string pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 2654435761U) >> 13);
  return text;
}

HttpOptions quick(double stall_seconds = 0.4) {
  HttpOptions options;
  options.stall_seconds = stall_seconds;
  return options;
}

std::string read_all(HttpStream& stream, size_t piece = 1000) {
  std::string text, buffer(piece, '\0');
  while (const size_t size = stream.read(buffer.data(), piece)) text.append(buffer, 0, size);
  return text;
}

std::string get(const std::string& url, const HttpOptions& options = quick()) {
  HttpStream stream({.url = url}, options);
  return read_all(stream);
}

std::string error_of(const std::string& url, const HttpOptions& options = quick()) {
  try {
    get(url, options);
  } catch (const NetworkError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a file comes whole, in pieces of any size, and over one connection") {
  const std::string file = pattern(700'001);
  LoopbackServer server([&](const HttpRequest& request) { return ranged_reply(request, file); });
  for (const size_t piece : {size_t{1} << 20, size_t{4099}}) {
    HttpStream stream({.url = server.url("/a.tar")}, quick());
    CHECK(read_all(stream, piece) == file);
    char byte = 0;
    CHECK(stream.read(&byte, 1) == 0);
  }
  CHECK(server.connections() == 1);
  LoopbackServer empty([](const HttpRequest&) { return http_reply(200, ""); });
  CHECK(get(empty.url("/a")).empty());
}

TEST_CASE("a transfer that is cut again and again goes on as long as the pieces make progress") {
  const std::string content = pattern(900'000);
  LoopbackServer server([&](const HttpRequest& request) {
    return cut_after(ranged_reply(request, content), 40'000);
  });
  CapturedLog log;
  CHECK(get(server.url("/a"), quick(1)) == content);
  CHECK(server.requests("/a") == 23);
  CHECK(log.count("at byte 40000; attempt 2") == 1);
  CHECK(log.count("attempt 4 in") == 0);  // two pieces are more than 64 KiB: the pause begins anew
}

TEST_CASE("a server without ranges starts again, and what was delivered is passed over") {
  const std::string file = pattern(300'000);
  LoopbackServer server([&](const HttpRequest& request) {
    const HttpReply reply = http_reply(200, file);
    return request.number <= 2 ? cut_after(reply, 100'000U * request.number) : reply;
  });
  CapturedLog log;
  CHECK(get(server.url("/a.tar")) == file);
  CHECK(server.requests("/a.tar") == 3);
}

TEST_CASE("a file that changes between two attempts is an error") {
  const std::string file = pattern(100'000);
  CapturedLog log;
  LoopbackServer other_tag([&](const HttpRequest& request) {
    if (request.number == 1) return cut_after(ranged_reply(request, file), 5000);
    return http_reply(200, file, "ETag: \"2\"\r\n");
  });
  CHECK_THAT(error_of(other_tag.url("/a")), Contains("the file has changed at byte 5000"));
  LoopbackServer shorter([&](const HttpRequest& request) {
    if (request.number == 1) return cut_after(http_reply(200, file), 5000);
    return http_reply(200, file.substr(1));
  });
  CHECK_THAT(error_of(shorter.url("/a")), Contains("the file has changed at byte 5000"));
  LoopbackServer other_range([&](const HttpRequest& request) {
    if (request.number == 1) return cut_after(ranged_reply(request, file), 5000);
    return http_reply(206, file.substr(1), "Content-Range: bytes 1-99999/100000\r\n");
  });
  CHECK_THAT(error_of(other_range.url("/a")), Contains("another range than \"bytes=5000-\""));
}

TEST_CASE("an endless stall ends with an error within ten times the longest stall") {
  const std::string file = pattern(100'000);
  CapturedLog log;
  LoopbackServer silent([](const HttpRequest&) { return HttpReply{"", false, true}; });
  LoopbackServer dripping([&](const HttpRequest& request) {  // some bytes at each attempt
    HttpReply reply = cut_after(ranged_reply(request, file), 10);
    reply.hang = true;
    return reply;
  });
  LoopbackServer waiting(
      [](const HttpRequest&) { return http_reply(429, "", "Retry-After: 3600\r\n"); });
  for (LoopbackServer* server : {&silent, &dripping, &waiting}) {
    std::string message;
    CHECK(seconds_of([&] { message = error_of(server->url("/a")); }) < 4);
    CHECK_THAT(message,
               Contains("no byte for 0.4 seconds") || Contains("status 429") ||
                   Contains("only 10 bytes in 0.4"));
  }
}

TEST_CASE("a stall is cut, and the next attempt goes on") {
  const std::string file = pattern(100'000);
  CapturedLog log;
  LoopbackServer server([&](const HttpRequest& request) {
    HttpReply reply = ranged_reply(request, file);
    if (request.number == 1) {
      reply = cut_after(reply, 50'000);
      reply.hang = true;
    }
    return reply;
  });
  CHECK(get(server.url("/a")) == file);
  CHECK(log.count("no byte for 0.4 seconds at byte 50000") == 1);
}

TEST_CASE("a trickle is cut and ends with an error, a slow transfer goes on") {
  const std::string file = pattern(100'000);
  CapturedLog log;
  LoopbackServer trickle([&](const HttpRequest& request) {
    HttpReply reply = ranged_reply(request, file);
    reply.piece = 1;
    reply.pause_ms = 50;  // 20 bytes/s
    return reply;
  });
  std::string message;
  CHECK(seconds_of([&] { message = error_of(trickle.url("/a"), quick(0.6)); }) < 6);
  CHECK_THAT(message, Contains("bytes in 0.6"));
  LoopbackServer slow([&](const HttpRequest& request) {
    HttpReply reply = ranged_reply(request, file.substr(0, 3000));
    reply.piece = 50;
    reply.pause_ms = 50;  // 1000 bytes/s
    return reply;
  });
  CHECK(get(slow.url("/a"), quick(0.6)) == file.substr(0, 3000));
  CHECK(slow.requests("/a") == 1);
}

TEST_CASE("what comes with an error is delivered before it") {
  const std::string file = pattern(5000);
  CapturedLog log;
  LoopbackServer server([&](const HttpRequest& request) {
    return request.number == 1 ? cut_after(ranged_reply(request, file), 3000) : http_reply(404, "");
  });
  HttpStream stream({.url = server.url("/a")}, quick());
  std::string got, buffer(10'000, '\0');
  CHECK_THROWS_AS(
      [&] {
        while (const size_t size = stream.read(buffer.data(), buffer.size())) {
          got.append(buffer, 0, size);
        }
      }(),
      HttpStatusError);
  CHECK(got == file.substr(0, 3000));
}

TEST_CASE("a port where nobody listens is an error that names it") {
  CapturedLog log;
  std::string url;
  {
    LoopbackServer gone([](const HttpRequest&) { return HttpReply{}; });
    url = gone.url("/a.tar");
  }
  HttpOptions options = quick();
  options.attempts = 2;
  CHECK_THAT(error_of(url, options), Contains(url) && Contains("after 2 attempts"));
  CHECK_THAT(error_of("http://[", options), Contains("http://["));
}

TEST_CASE("what breaks off behind a redirect is tried again, and its own reason is given") {
  const std::string file = pattern(5000);
  std::atomic<int> asked{0};
  LoopbackServer server([&](const HttpRequest& request) {
    if (request.path == "/old") return http_reply(302, "", "Location: /new\r\n");
    if (request.path == "/gone") return http_reply(302, "", "Location: http://127.0.0.1:1/a\r\n");
    if (++asked == 1) return HttpReply{"", true};  // closed without an answer
    return ranged_reply(request, file);
  });
  CHECK(get(server.url("/old")) == file);
  CHECK(asked >= 2);
  HttpOptions options = quick();
  options.attempts = 2;
  CHECK_THAT(error_of(server.url("/gone"), options),
             Contains("after 2 attempts") && !Contains("status 302"));
}

TEST_CASE("a waiting stream can be cancelled") {
  LoopbackServer silent([](const HttpRequest&) { return HttpReply{"", false, true}; });
  HttpOptions options = quick(30);
  int asked = 0;
  options.cancelled = [&] { return ++asked > 2; };
  CHECK_THAT(error_of(silent.url("/a"), options), Contains("cancelled"));
}

TEST_CASE("the longest stall comes from DALLE2_NET_TIMEOUT") {
  unsetenv("DALLE2_NET_TIMEOUT");
  CHECK(net_timeout_seconds() == 60);
  setenv("DALLE2_NET_TIMEOUT", "2.5", 1);
  CHECK(net_timeout_seconds() == 2.5);
  for (const char* wrong : {"0", "-1", "soon", "5s", "nan"}) {
    setenv("DALLE2_NET_TIMEOUT", wrong, 1);
    CHECK_THROWS_WITH(net_timeout_seconds(), Contains(wrong));
  }
  unsetenv("DALLE2_NET_TIMEOUT");
}
