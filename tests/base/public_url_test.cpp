// SPDX-License-Identifier: MIT
#include "base/public_url.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "base/timer.h"
#include "base/untrusted_json.h"

using namespace dalle2;

TEST_CASE("an url is shown without login and query") {
  CHECK(public_url("https://u:p@h:1/a/b.tar?X-Amz-Signature=1#f") == "https://h:1/a/b.tar");
  CHECK(public_url("http://h/a@b.tar") == "http://h/a@b.tar");
  CHECK(public_url("http://u@h") == "http://h");
  CHECK(public_url("shards/0.tar") == "shards/0.tar");
}

TEST_CASE("each url of a list is shown without login and query, a command by its first word") {
  CHECK(public_url("https://u:p@h/a.tar?s=1::http://v@g/b.tar#f::c.tar") ==
        "https://h/a.tar::http://g/b.tar");
  CHECK(public_url("a.tar::s3://u:p@b/c.tar?x::/d.tar") == "a.tar::s3://b/c.tar");
  CHECK(public_url("a?b.tar::c.tar") == "a?b.tar::c.tar");  // plain paths, as they are
  CHECK(public_url("https://u:p::q@h/a") == "https://h/a");
  CHECK(public_url("http://[::1]:80/a?s=1") == "http://[::1]:80/a");
  CHECK(public_url("HTTPS://u:p@h/a?s") == "HTTPS://h/a");
  CHECK(public_url("pipe:curl -H \"Authorization: Bearer x\" https://h/{}.tar") == "pipe:curl ...");
  CHECK(public_url("pipe:/opt/bin/get-it.sh") == "pipe:/opt/bin/get-it.sh");
  CHECK(public_url(" pipe: cat a.tar") == "pipe:cat ...");
  CHECK(public_url("pipe:TOKEN=x curl h") == "pipe:...");
  CHECK(public_url("pipe:\"cat\" x") == "pipe:...");
  CHECK(public_url("pipe:curl<secret") == "pipe:curl ...");
  CHECK(public_url("pipe:") == "pipe:");
  CHECK(public_url("pipe:curl a -H \"K::secret\"::https://u:p@h/a.tar?s::pipe:cat secret") ==
        "pipe:curl ...::https://h/a.tar::pipe:cat ...");
  CHECK(public_url("pipe:curl \"x::https://h/a\" -H secret") == "pipe:curl ...::https://h/a");
}

TEST_CASE("each url of a list in braces is shown without login and query") {
  CHECK(public_url("{http://a/x,http://u:pw@b/y}.tar") == "{http://a/x,http://b/y}.tar");
  CHECK(public_url("http://a:80,http://u:pw@c/d") == "http://c/d");  // "80,http:" is no port
  CHECK(public_url("http://a/b http://u:pw@c/d?s") == "http://a/b http://c/d");
  CHECK(public_url("{s3://k:s@b/x?q,http://u:pw@b/y}") == "{s3://b/x");
}

TEST_CASE("no secret of a list of urls and commands is shown") {
  std::mt19937 random(7);
  const auto any = [&](size_t count) { return random() % count; };
  const std::string canary = "canary";
  const auto secret_url = [&] {
    const std::vector<std::string> schemes = {"http://", "https://", "s3://", "gs://", "HTTP://"};
    const std::vector<std::string> logins = {
        "", "canary@", "u:canary@", "u:can::canary@", "u:c@canary@", "u:a?canary@", "u:a/canary@"};
    const std::vector<std::string> hosts = {"h", "h.example:80", "[::1]", "bucket"};
    const std::vector<std::string> paths = {"", "/", "/a/{0..9}.tar", "/a b/c@d.tar", "/a::b.tar"};
    const std::vector<std::string> queries = {
        "", "?canary", "?a=canary&b=canary", "#canary", "?sig=a::canary", "?a={canary}/canary"};
    return schemes[any(5)] + logins[any(7)] + hosts[any(4)] + paths[any(5)] + queries[any(6)];
  };
  const std::vector<std::string> commands = {"pipe:curl -H 'Authorization: Bearer canary' h",
                                             "pipe:TOKEN=canary curl h",
                                             "pipe:curl -u u:canary https://h/{}.tar",
                                             "pipe:curl 'https://canary@h/{}.tar?canary'",
                                             "pipe:curl --header=X::canary h",
                                             "pipe:curl 'https://h/a::http://h' -H canary",
                                             "pipe: \tcurl\tcanary",
                                             "pipe:$(cat canary)",
                                             "pipe:curl<canary",
                                             "pipe:'canary'"};
  const std::vector<std::string> paths = {"a.tar", "/a/{}.tar", "file:b.tar", "file:///c.tar"};
  for (int round = 0; round < 20'000; ++round) {
    std::string list;
    for (size_t part = 0, parts = 1 + any(4); part < parts; ++part) {
      if (part > 0) list += "::";
      const size_t kind = any(3);
      list += kind == 0 ? secret_url() : kind == 1 ? commands[any(10)] : paths[any(4)];
    }
    const std::string shown = public_url(list);
    INFO(list << "\n" << shown);
    REQUIRE(shown.find(canary) == std::string::npos);
    REQUIRE(public_url(shown) == shown);
  }
}

TEST_CASE("secrets are taken out of every text of a JSON value, the place of a number stays") {
  Json value = Json::parse(
      R"({"a": ["http://u:p@h/x?k", 1, {"b": "pipe:curl -H canary h/{}"}], "http": "plain"})");
  CHECK(take_out_secrets(value));
  CHECK(value ==
        Json::parse(R"({"a": ["http://h/x", 1, {"b": "pipe:curl ...{}"}], "http": "plain"})"));
  CHECK_FALSE(take_out_secrets(value));
}

TEST_CASE("a sentence shows its urls without login and query, and is otherwise as it was") {
  CHECK(public_text("http://u:p@h/a.tar?k=1: cannot be opened") ==
        "http://h/a.tar: cannot be opened");
  CHECK(public_text("got \"http://u:p@h/a?k\", s3://b/c (and https://v@g/d#e).\n  x") ==
        "got \"http://h/a\", s3://b/c (and https://g/d).\n  x");
  CHECK(public_text("a::http://u:p@h/a::http://u:p@g/b?s, then") ==
        "a::http://h/a::http://g/b, then");
  for (const char* plain :
       {"", "no url: a/b?c#d, e@f", "http://h/a/{0..9}.tar::c.tar: 404", "://", "a ://?"}) {
    CHECK(public_text(plain) == plain);
  }
}

TEST_CASE("an error says nothing of the secrets of an url") {
  const DataError error(
      "{}: cannot be read (of {})", "https://u:canary@h/a?canary", "s3://canary@b/c");
  CHECK(std::string(error.what()) == "https://h/a: cannot be read (of s3://b/c)");
}

TEST_CASE("no secret of an url in a sentence is shown, and twice is once") {
  std::mt19937 random(8);
  const std::vector<std::string> words = {"got ",
                                          "\"",
                                          "::",
                                          ", ",
                                          " (",
                                          ")",
                                          ": ",
                                          "\n  ",
                                          "u:canary@h/x?canary",
                                          "http://canary@h",
                                          "https://u:canary@h/a.tar?s=canary#canary",
                                          "s3://b/k?canary",
                                          "http://[::1]:80/?canary",
                                          "ftp://u:can::canary@h/"};
  // A word alone is no url: it stands behind a scheme or not at all.
  const auto any = [&](size_t count) { return random() % count; };
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t part = 0, parts = 1 + any(6); part < parts; ++part) {
      const size_t word = any(words.size());
      if (word == 8) text += "http://";
      text += words[word];
      if (word >= 8) text += any(2) == 0 ? " " : "\"";
    }
    const std::string shown = public_text(text);
    INFO(text << "\n" << shown);
    REQUIRE(shown.find("canary") == std::string::npos);
    REQUIRE(public_text(shown) == shown);
  }
}

TEST_CASE("a list of paths costs what its paths do, however many they are") {
  std::string list = "shards/000000.tar";
  for (int i = 1; i < 100'000; ++i) list += "::shards/" + std::to_string(i) + ".tar";
  const Timer timer;
  CHECK(public_url(list) == list);
  CHECK(timer.seconds() < 5);  // each over all that follow it: a minute
}

TEST_CASE("what looks like a token of a service is not shown") {
  const std::string hub = "hf_" + std::string(34, 'A'), key = std::string(40, 'b');
  for (const std::string& secret : {hub,
                                    key,
                                    "wandb_v1_" + std::string(70, 'a'),
                                    std::string("AKIAIOSFODNN7EXAMPLE"),
                                    std::string("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")}) {
    CHECK(without_tokens(secret) == "...");
    CHECK(without_tokens("got [\"" + secret + "\", 1]") == "got [\"...\", 1]");
    CHECK(without_tokens("Unknown: " + secret + ". Must be") == "Unknown: .... Must be");
    CHECK(without_tokens("--set /a=" + secret + ":") == "--set /a=...:");
  }
  CHECK(without_tokens("o/" + hub + "/x") == "o/.../x");
  for (const std::string& text : {std::string(64, 'a'),
                                  std::string(39, 'a'),
                                  "x" + key,
                                  "cache/snapshots/" + key + "/m.pt",
                                  std::string("secrets/hf_token.txt"),
                                  std::string("hf_login"),
                                  std::string("AKIA"),
                                  std::string("/home/User1/a/folder/of/Some/Pictures/01"),
                                  std::string("expected 3 to 4, got 5\n  Do this.")}) {
    CHECK(without_tokens(text) == text);
  }
}

TEST_CASE("the scheme of an address has no case") {
  CHECK(with_small_schemes("HTTPS://u:P@H/A?B") == "https://u:P@H/A?B");
  CHECK(with_small_schemes("S3://B/K::Http://h/{}::FILE:/a::Hf://O/N/F") ==
        "s3://B/K::http://h/{}::file:/a::hf://O/N/F");
  for (const char* text : {"", "H", "HTTP:/h", "HTTPX://h", "a/HTTP://h", "PIPE:cat HTTP://h"})
    CHECK(with_small_schemes(text) == text);
}

namespace dalle2 {
namespace {
using Json = nlohmann::ordered_json;

TEST_CASE("no comment of a config is stored, and its values stay as they are") {
  const std::string text =
      "// HF_TOKEN=canary\n{ \"a\": [1.50,\"b.tar::c.tar\"], /* canary */\n \"pipes\": \"a?b#c@d\"}\n";
  CHECK(public_config(text) ==
        "{\n    \"a\": [\n        1.5,\n        \"b.tar::c.tar\"\n    ],\n"
        "    \"pipes\": \"a?b#c@d\"\n}");
  CHECK(public_config("no {json") == "no {json");
}

TEST_CASE("a config is stored without logins, queries and commands, in lists, too") {
  const Json config = {
      {"data",
       {{"webdataset_base_url", Json::array({"https://u:p@h/{}.tar?s=1", "a.tar::s3://k@b/c.tar"})},
        {"img_embeddings_url", "pipe:curl -H 'Key: p' https://h/{}.npy"}}},
      {"epochs", 3}};
  const Json expected = {
      {"data",
       {{"webdataset_base_url", Json::array({"https://h/{}.tar", "a.tar::s3://b/c.tar"})},
        {"img_embeddings_url", "pipe:curl ...{}"}}},
      {"epochs", 3}};
  const std::string stored = public_config(config.dump());
  CHECK(Json::parse(stored) == expected);
  CHECK(public_config(stored) == stored);
  CHECK(public_config("{\"a\": 1 /* https://u:p@h */}") == "{\n    \"a\": 1\n}");
}

}  // namespace
}  // namespace dalle2
