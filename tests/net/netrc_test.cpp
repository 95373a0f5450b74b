// SPDX-License-Identifier: MIT
#include "net/url.h"

#include <catch2/catch.hpp>

#include "net/http_call.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

using test::http_reply;
using test::HttpRequest;
using test::LoopbackServer;

std::string password(const std::string& text,
                     const std::string& host,
                     const std::string& user = "") {
  return netrc_login(text, host, user).value_or(NetrcLogin{"", "none"}).password;
}

TEST_CASE("netrc: the login of a host, with its port, in quotes or not") {
  const std::string text =
      "# machine a password no\n"
      "machine a login x password 'one'\n"
      "macdef init\ncd a\nmachine b password no\n\n"
      "default login y password two\n"
      "machine b:8080\n  account z\n  password three\n";
  CHECK(password(text, "a") == "one");
  CHECK(netrc_login(text, "a")->user == "x");
  CHECK(password(text, "b:8080") == "three");
  CHECK(netrc_login(text, "b:8080")->user.empty());
  CHECK(password(text, "b") == "two");
  CHECK(netrc_login(text, "b")->user == "y");
  CHECK(password("machine a password one", "b") == "none");
  CHECK(password("", "a") == "none");
  CHECK(password("machine a login", "a") == "none");
}

TEST_CASE("netrc: the password may stand before the login, and a user chooses among logins") {
  const std::string text =
      "machine a password one login x\nmachine a login y password two\n"
      "machine a login z\ndefault login z password three";
  CHECK(netrc_login(text, "a")->user == "x");
  CHECK(password(text, "a", "x") == "one");
  CHECK(password(text, "a", "y") == "two");
  CHECK(password(text, "a", "z") == "three");
  CHECK(password(text, "a", "other") == "none");
}

/// Keeps what requests had as their login.
struct Listening {
  std::mutex mutex;
  std::vector<std::string> logins;

  void add(const HttpRequest& request) {
    const std::lock_guard lock(mutex);
    const auto found = request.headers.find("authorization");
    logins.push_back(found == request.headers.end() ? "none" : found->second);
  }
};

std::string get(const std::string& url, bool netrc) {
  HttpOptions options;
  options.stall_seconds = 2;
  options.attempts = 1;
  HttpStream stream(HttpGet{.url = url, .netrc = netrc}, options);
  std::string text(100, ' ');
  text.resize(stream.read(text.data(), text.size()));
  return text;
}

TEST_CASE("a login of netrc goes to its host alone, wherever a redirect leads") {
  const test::TempDir dir;
  std::ofstream(dir / "netrc") << "machine 127.0.0.1 login me password word\n"
                                  "default login all password secret\n";
  ::setenv("NETRC", (dir / "netrc").c_str(), 1);
  Listening near, far;
  const LoopbackServer other([&](const HttpRequest& request) {
    far.add(request);
    return http_reply(200, "there");
  });
  std::string to_localhost = other.url("/x");
  to_localhost.replace(to_localhost.find("127.0.0.1"), 9, "localhost");
  const LoopbackServer server([&](const HttpRequest& request) {
    near.add(request);
    if (request.path.starts_with("/here")) return http_reply(200, "here");
    const std::string to = request.path == "/near"   ? "/here"
                           : request.path == "/port" ? other.url("/x")
                                                     : to_localhost;
    return http_reply(302, "", "Location: " + to + "\r\n");
  });
  const auto header_value = [](const std::string& user, const std::string& password) {
    const std::string line = basic_authorization(user, password);  // "Authorization: Basic ..."
    return line.substr(line.find(": ") + 2);
  };
  const std::string mine = header_value("me", "word");
  CHECK(get(server.url("/near"), true) == "here");
  CHECK(near.logins == std::vector<std::string>{mine, mine});
  CHECK(get(server.url("/here"), false) == "here");
  CHECK(near.logins.back() == "none");
  for (const char* path : {"/port", "/host"}) {
    CHECK(get(server.url(path), true) == "there");
    HttpCall call{.url = server.url(path), .netrc = true};
    CHECK(http_call(call, {.stall_seconds = 2, .attempts = 1}).body == "there");
    CHECK(near.logins.back() == mine);
  }
  CHECK(far.logins == std::vector<std::string>(4, "none"));
  // A signature is a login too, and a store refuses two of them.
  for (const char* query : {"?X-Amz-Signature=1", "?a=b&sig=c", "?Expires=1&Signature=x"}) {
    get(server.url("/here") + query, true);
    CHECK(near.logins.back() == "none");
    http_call({.url = server.url("/here") + query, .netrc = true}, {.attempts = 1});
    CHECK(near.logins.back() == "none");
  }
  get(server.url("/here?design=1"), true);
  CHECK(near.logins.back() == mine);
  // The address's own login comes first.
  std::string url = server.url("/here");
  get(url.replace(url.find("127"), 0, "you:own@"), true);
  CHECK(near.logins.back() == header_value("you", "own"));
  ::unsetenv("NETRC");
}

}  // namespace
}  // namespace dalle2
