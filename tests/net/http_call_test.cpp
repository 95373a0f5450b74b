// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <numeric>

#include "base/stop_signal.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"
#include "support/seconds_of.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

HttpOptions in_haste(double stall_seconds = 0.4) {
  HttpOptions options;
  options.stall_seconds = stall_seconds;
  return options;
}

/// What a server was asked, in order.
class Seen {
 public:
  void add(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const std::vector<HttpRequest>& all() const { return requests_; }

 private:
  std::mutex mutex_;
  std::vector<HttpRequest> requests_;
};

std::string error_of_call(const HttpCall& call, const HttpOptions& options = in_haste()) {
  try {
    http_call(call, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a call sends its method, headers and body, and gets the whole answer") {
  Seen seen;
  LoopbackServer server([&](const HttpRequest& request) {
    seen.add(request);
    return http_reply(201, request.method == "HEAD" ? "" : "made", "X-Thing: a b\r\n");
  });
  const std::string body(300'000, 'x');
  for (const std::string method : {"POST", "PUT", "PATCH", "DELETE"}) {
    const HttpAnswer answer = http_call({.method = method,
                                         .url = server.url("/thing?a=1"),
                                         .headers = {"X-One: 1", "Content-Type: text/plain"},
                                         .body = method == "DELETE" ? "" : body},
                                        in_haste());
    CHECK(answer.status() == 201);
    CHECK(answer.body == "made");
    CHECK(answer.header("x-thing") == "a b");
    CHECK(answer.shown == server.url("/thing"));
  }
  for (size_t i = 0; i < 4; ++i) CHECK(seen.all()[i].headers.at("x-one") == "1");
  CHECK(seen.all()[0].method == "POST");
  CHECK(seen.all()[0].body == body);
  CHECK(seen.all()[1].method == "PUT");
  CHECK(seen.all()[1].body == body);
  CHECK(seen.all()[3].method == "DELETE");
  CHECK(seen.all()[3].headers.count("content-length") == 0);
  CHECK(http_call({.method = "HEAD", .url = server.url("/thing")}, in_haste()).body.empty());
  CHECK(http_call({.method = "POST", .url = server.url("/thing")}, in_haste()).body == "made");
  CHECK(seen.all().back().headers.at("content-length") == "0");
  CHECK(server.connections() == 1);
}

TEST_CASE("a part of a file is sent, and again at another attempt") {
  const TempDir dir;
  std::ofstream(dir / "a.bin") << "0123456789";
  Seen seen;
  LoopbackServer server([&](const HttpRequest& request) {
    seen.add(request);
    return http_reply(request.number == 1 ? 503 : 200, "");
  });
  CapturedLog log;
  HttpCall call{
      .method = "PUT", .url = server.url("/part"), .file = HttpFilePart{dir / "a.bin", 3, 4}};
  http_call(call, in_haste(2));
  REQUIRE(seen.all().size() == 2);
  CHECK(seen.all()[0].body == "3456");
  CHECK(seen.all()[1].body == "3456");
  CHECK(log.count("status 503; attempt 2 in") == 1);
  call.file = HttpFilePart{dir / "a.bin", 7};
  http_call(call, in_haste());
  CHECK(seen.all()[2].body == "789");
  call.file = HttpFilePart{dir / "a.bin", 7, 4};
  CHECK_THAT(error_of_call(call), Contains("bytes 7 to 11 should be sent, but the file has 10"));
  call.file = HttpFilePart{dir / "absent.bin"};
  CHECK_THAT(error_of_call(call), Contains("absent.bin: cannot be read"));
  CHECK(seen.all().size() == 3);
}

TEST_CASE("failures that pass are tried again, and Retry-After is kept to") {
  LoopbackServer server([](const HttpRequest& request) {
    if (request.number == 1) return HttpReply{};  // the connection ends without an answer
    if (request.number == 2) return http_reply(429, "", "Retry-After: 1\r\n");
    if (request.number == 3) return cut_after(http_reply(200, "whole"), 2);
    return http_reply(200, "whole");
  });
  CapturedLog log;
  HttpAnswer answer;
  HttpOptions options = in_haste(2);
  int faults = 0;
  options.on_fault = [&] { ++faults; };
  CHECK(seconds_of([&] {
          answer = http_call({.method = "POST", .url = server.url("/a"), .body = "b"}, options);
        }) > 1);
  CHECK(answer.body == "whole");
  CHECK(faults == 3);
  CHECK(server.requests("/a") == 4);
  CHECK(log.count("status 429 and asks to wait 1 s; attempt 3 in 1.0 s") == 1);
}

TEST_CASE("without Retry-After a 429 asks to wait as its RateLimit says") {
  LoopbackServer server([](const HttpRequest& request) {
    const std::string limit = "RateLimit: \"api\";r=0;t=", after = "Retry-After: 1\r\n";
    if (request.number == 1) return http_reply(429, "", limit + "1\r\n");
    if (request.number == 2) return http_reply(429, "", after + limit + "500\r\n");
    if (request.number == 3) return http_reply(429, "", "RateLimit: \"api\";r=0\r\n");
    return http_reply(200, "");
  });
  CapturedLog log;
  http_call({.url = server.url("/a")}, in_haste(2));
  CHECK(log.count("status 429 and asks to wait 1 s; attempt 2 in 1.0 s") == 1);
  CHECK(log.count("status 429 and asks to wait 1 s; attempt 3 in 1.0 s") == 1);
  CHECK(log.count("status 429; attempt 4 in") == 1);
}

TEST_CASE("attempts that fail at once take about 45 s, in pauses of 0.5 s to 15 s") {
  const CapturedLog log;
  HttpAttempts attempts({.url = "http://127.0.0.1/a"},
                        {.stall_seconds = 60, .attempts = 8, .cancelled = [] {
                           return true;
                         }});  // no pause is waited for
  for (int i = 0; i < 7; ++i)
    CHECK_THROWS_WITH(attempts.after({.reason = "no"}), Contains("cancelled"));
  CHECK_THROWS_WITH(attempts.after({.reason = "no"}), Contains("no, after 8 attempts"));
  std::vector<double> pauses;
  for (const CapturedLog::Line& line : log.lines())
    pauses.push_back(std::stod(line.text.substr(line.text.rfind(' ', line.text.size() - 3))));
  REQUIRE(pauses.size() == 7);
  CHECK(pauses.front() == Approx(0.5).margin(0.2));
  CHECK(pauses.back() == Approx(15));
  CHECK(std::accumulate(pauses.begin(), pauses.end(), 0.0) == Approx(45).margin(8));
}

TEST_CASE("failures and pauses that cost four stall times end the attempts") {
  const CapturedLog log;
  HttpAttempts attempts({.url = "http://127.0.0.1/a"},
                        {.stall_seconds = 60, .attempts = 8, .cancelled = [] { return true; }});
  for (int i = 0; i < 3; ++i)
    CHECK_THROWS_WITH(attempts.after({.reason = "no", .lost_seconds = 60}), Contains("cancelled"));
  CHECK_THROWS_WITH(attempts.after({.reason = "no", .lost_seconds = 60}), Contains("after 4"));
}

TEST_CASE("progress is bytes that come or go, and not an attempt that waits") {
  LoopbackServer server([](const HttpRequest& request) {
    return request.path == "/silent" ? HttpReply{"", false, true} : http_reply(200, "");
  });
  HttpOptions once = in_haste(0.7);
  once.attempts = 1;
  http_call({.url = server.url("/a")}, once);
  CHECK(seconds_without_progress() < 0.5);
  CHECK_THAT(error_of_call({.url = server.url("/silent")}, once), Contains("no byte"));
  CHECK(seconds_without_progress() > 0.5);
  // libcurl has given all of it to the kernel, which sends it for longer than a stall.
  const std::string body(1'500'000, 'x');
  CHECK(http_call({.method = "PUT", .url = server.url("/slowly"), .body = body}, once).status() ==
        200);
}

TEST_CASE("the login of a proxy that cannot be used is not shown") {
  CleanEnvironment environment({"http_proxy", "no_proxy", "NO_PROXY"});
  CapturedLog log;
  for (const char* proxy :
       {"http://user:canary@[bad", "user:canary@[bad", "foo://user:canary@host"}) {
    environment.set("http_proxy", proxy);
    const std::string message = error_of_call({.url = "http://host.invalid/a", .plain_http = true});
    CHECK_THAT(message, Contains("proxy") && !Contains("canary"));
  }
  CHECK(log.count("canary") == 0);
}

TEST_CASE("nothing for this machine goes through a proxy") {
  CleanEnvironment environment({"http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"});
  Seen by_proxy;
  LoopbackServer proxy([&](const HttpRequest& request) {
    by_proxy.add(request);
    return http_reply(200, "proxy");
  });
  LoopbackServer server([](const HttpRequest&) { return http_reply(200, "server"); });
  environment.set("http_proxy", proxy.url(""));
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const std::string url = server.url("/a").replace(7, 9, host).insert(7, "me:secret@");
    CHECK(http_call({.url = url, .headers = {"Authorization: x"}}, in_haste()).body == "server");
  }
  CHECK(by_proxy.all().empty());
  CHECK(http_call({.url = "http://host.invalid/a", .plain_http = true}, in_haste()).body ==
        "proxy");
}

TEST_CASE("certificates come from the first variable that names some, which has to be there") {
  CleanEnvironment environment(
      {"AWS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"});
  const TempDir dir;
  HttpCall call{.url = "https://127.0.0.1:1/a"};
  CHECK_THAT(error_of_call(call), Contains("onnect to 127.0.0.1 port 1"));
  for (const char* name :
       {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE"}) {
    environment.set(name, dir / name);
    if (name == std::string("AWS_CA_BUNDLE")) call.sign = [] { return std::vector<std::string>{}; };
    CHECK_THROWS_AS(http_call(call, in_haste()), ConfigError);
    CHECK_THAT(error_of_call(call), Contains(fmt::format("{}: '{}' cannot", name, dir / name)));
  }
  call.sign = nullptr;
  CHECK_THAT(error_of_call(call), Contains("SSL_CERT_FILE: "));
  environment.set("SSL_CERT_FILE", "");
  CHECK_THAT(error_of_call(call), Contains("CURL_CA_BUNDLE: "));
  LoopbackServer plain([](const HttpRequest&) { return http_reply(200, "x"); });
  CHECK(http_call({.url = plain.url("/a")}, in_haste()).body == "x");
}

TEST_CASE("the advice fits the status, and a service that takes no more for now is away") {
  LoopbackServer server(
      [](const HttpRequest& request) { return http_reply(std::stoi(request.path.substr(1)), ""); });
  CapturedLog log;
  const auto said = [&](const std::string& path, int attempts = 1) {
    return error_of_call({.url = server.url(path)}, {.stall_seconds = 0.4, .attempts = attempts});
  };
  CHECK_THAT(said("/403"), Contains("login or signature"));
  CHECK_THAT(said("/404"), Contains("no such file"));
  CHECK_THAT(said("/500", 2), Contains("after 2 attempts") && Contains("try again later"));
  CHECK_THAT(said("/413"), Contains("takes no body of that size"));
  CHECK_THAT(said("/429"), Contains("takes no more requests for now"));
  CHECK_THAT(said("/507"), Contains("no space left"));
  for (const long status : {429, 503, 408}) CHECK(may_pass(HttpStatusError(status, "")));
  for (const long status : {403, 404, 413}) CHECK_FALSE(may_pass(HttpStatusError(status, "")));
}

TEST_CASE("a deadline ends a call, whatever the server does, and it counts as away") {
  LoopbackServer server([](const HttpRequest& request) {
    if (request.path == "/silent") return HttpReply{"", false, true};
    if (request.path == "/busy") return http_reply(429, "", "Retry-After: 20\r\n");
    if (request.path == "/fails") return http_reply(503, "");
    HttpReply slow = http_reply(200, std::string(100'000, 'x'));
    slow.piece = 20;
    slow.pause_ms = 20;
    return slow;
  });
  CapturedLog log;
  for (const char* path : {"/silent", "/busy", "/fails", "/slow"}) {
    HttpOptions options = in_haste(60);
    options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    bool passes = false;
    CHECK(seconds_of([&] {
            try {
              http_call({.url = server.url(path)}, options);
            } catch (const NetworkError& error) {
              passes = may_pass(error);
            }
          }) < 2);
    CHECK(passes);
  }
  CHECK(server.requests("/busy") == 1);
}

TEST_CASE("a refusal is an error at once, unless the caller can use it") {
  LoopbackServer server([](const HttpRequest& request) {
    return http_reply(std::stoi(request.path.substr(1, 3)), "reason");
  });
  HttpCall call{.url = server.url("/409?token=secret"), .accepted = {409}};
  const HttpAnswer answer = http_call(call, in_haste());
  CHECK(answer.status() == 409);
  CHECK(answer.body == "reason");
  call.accepted = {404};
  call.explain = [](const HttpAnswer& refused) { return "Because of " + refused.body; };
  CHECK_THAT(error_of_call(call),
             Contains("/409: the server answers with status 409.\n  Because of reason."));
  CHECK_THAT(error_of_call(call), !Contains("secret"));
  try {
    http_call({.url = server.url("/401")}, in_haste());
    CHECK(false);
  } catch (const HttpStatusError& error) {
    CHECK(error.status() == 401);
    CHECK(error.code() == ExitCode::kNetwork);
  }
  CHECK(server.requests("/401") == 1);
}

TEST_CASE("a redirect to another server carries no login") {
  Seen seen;
  LoopbackServer other([&](const HttpRequest& request) {
    seen.add(request);
    return http_reply(200, "there");
  });
  LoopbackServer server([&](const HttpRequest& request) {
    if (request.path == "/near") return http_reply(200, request.headers.at("authorization"));
    if (request.path == "/303") return http_reply(303, "", "Location: /got\r\n");
    if (request.path == "/got") return http_reply(200, request.method + request.body);
    if (request.path == "/loop") return http_reply(307, "", "Location: /loop\r\n");
    const std::string to = request.path == "/to-near" ? "/near" : other.url("/far");
    return http_reply(307, "", "Location: " + to + "\r\n");
  });
  HttpCall call{
      .method = "POST",
      .url = server.url("/to-far"),
      .headers = {"Authorization: Bearer secret", "X-Api-Key: secret", "Content-Type: a/b"},
      .body = "content"};
  const auto with_login = [](std::string url) { return url.insert(7, "me:secret@"); };
  call.url = with_login(call.url);
  CHECK(http_call(call, in_haste()).body == "there");
  REQUIRE(seen.all().size() == 1);
  CHECK(seen.all()[0].method == "POST");
  CHECK(seen.all()[0].body == "content");
  CHECK(seen.all()[0].headers.at("content-type") == "a/b");
  for (const auto& [name, value] : seen.all()[0].headers) {
    CHECK_THAT(value, !Contains("secret"));
    CHECK(name != "authorization");
  }
  call.url = server.url("/to-near");
  CHECK(http_call(call, in_haste()).body == "Bearer secret");
  call.url = server.url("/303");
  CHECK(http_call(call, in_haste()).body == "GET");
  call.url = server.url("/loop");
  CHECK_THAT(error_of_call(call), Contains("more than 10 redirects"));
}

TEST_CASE(
    "a login in the url survives a redirect to the same server, for calls and streams alike") {
  Seen seen;
  std::function<std::string(const char*)> url_of;
  LoopbackServer server([&](const HttpRequest& request) {
    seen.add(request);
    if (request.path == "/b") return http_reply(200, "here");
    const std::string to = request.path == "/absolute" ? url_of("/b") : "/b";
    return http_reply(307, "", "Location: " + to + "\r\n");
  });
  url_of = [&](const char* path) { return server.url(path); };
  for (const char* path : {"/absolute", "/relative"}) {
    const std::string url = server.url(path).insert(7, "me:secret@");
    CHECK(http_call({.method = "PUT", .url = url, .body = "x"}, in_haste()).body == "here");
    HttpStream stream({.url = url}, in_haste());
    std::string text(4, ' ');
    CHECK(stream.read(text.data(), 4) == 4);
  }
  CHECK(seen.all().size() == 8);
  for (const HttpRequest& request : seen.all()) {
    CHECK("Authorization: " + request.headers.at("authorization") ==
          basic_authorization("me", "secret"));
  }
}

TEST_CASE("plain http leaves the machine only if that is allowed") {
  HttpCall call{.url = "http://me:secret@127.evil.example/a", .headers = {"Authorization: x"}};
  CHECK_THAT(error_of_call(call),
             Contains("http://127.evil.example/a: plain http to another machine"));
  CHECK_THAT(error_of_call(call), !Contains("secret"));
  LoopbackServer server([](const HttpRequest&) {
    return http_reply(302, "", "Location: http://example.invalid/b\r\n");
  });
  call.url = server.url("/a");
  CHECK_THAT(error_of_call(call), Contains("plain http to another machine ("));
  call.url = "ftp://127.0.0.1/a";
  CHECK_THAT(error_of_call(call), Contains("http or https is expected, got ftp"));
  CHECK(is_loopback_url("http://localhost:80/a"));
  CHECK(is_loopback_url("http://[::1]:80/a"));
  CHECK_FALSE(is_loopback_url("http://localhost.example/a"));
}

TEST_CASE("a stop signal ends a call, unless it is what must still be sent") {
  LoopbackServer server([](const HttpRequest& request) {
    return request.path == "/silent" ? HttpReply{"", false, true} : http_reply(200, "sent");
  });
  install_stop_signals();
  std::thread signal([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::raise(SIGTERM);
  });
  CHECK_THROWS_AS(http_call({.url = server.url("/silent")}, in_haste(30)), StoppedError);
  signal.join();
  HttpOptions options = in_haste();
  options.ends_at_stop = false;
  CHECK(http_call({.url = server.url("/a")}, options).body == "sent");
  clear_stop_request();
}

TEST_CASE("JSON goes and comes, and what is none is an error") {
  LoopbackServer server([](const HttpRequest& request) {
    if (request.path == "/page") return http_reply(200, "<html>log in</html>");
    return http_reply(200, R"({"got": )" + request.body + "}");
  });
  const Json answer =
      http_json({.method = "POST", .url = server.url("/a")}, {{"b", "\xff"}}, in_haste());
  CHECK(answer["got"]["b"] == "\xEF\xBF\xBD");
  CHECK_THROWS_WITH(http_json({.url = server.url("/page")}, nullptr, in_haste()),
                    Contains("(status 200, 19 bytes) is not JSON"));
}

TEST_CASE("what a service says comes without our secrets, on one line, and short") {
  CHECK(service_words("No.", {}) == "No");
  CHECK(service_words("a\nb\x1b[1m\x7f", {}) == "a b [1m ");
  CHECK(service_words("canary, acanaryb and canarycanary...", {"", "canary"}) ==
        "***, a***b and ******");
  CHECK(service_words("a*b", {"*"}) == "a***b");  // ends, though what hides it holds it
  // Hidden before it is cut: no half of a secret stays.
  CHECK(service_words(std::string(198, 'x') + "canary", {"canary"}) ==
        std::string(198, 'x') + "** [...]");
  CHECK(service_words(std::string(200, 'x'), {}) == std::string(200, 'x'));
  // A character of two bytes is not cut in its middle.
  CHECK(service_words(std::string(199, 'x') + "\xc3\xa9", {}) == std::string(199, 'x') + " [...]");
}

TEST_CASE("an answer that is no JSON is quoted short, and without a token") {
  const CapturedLog log;
  const std::string token = "hf_" + std::string(30, 'a');
  LoopbackServer server(
      [&](const HttpRequest&) { return http_reply(200, "\"" + token + std::string(9000, 'b')); });
  std::string text;
  try {
    http_json({.url = server.url("/")}, {});
  } catch (const NetworkError& error) {
    text = error.what();
  }
  CHECK_THAT(text, Contains("is not JSON") && !Contains(token.substr(0, 20)));
  CHECK(text.size() < 500);
}
