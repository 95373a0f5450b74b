// SPDX-License-Identifier: MIT
#include "base/public_url.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

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
  CHECK(Json::parse(public_config(config.dump())) == expected);
  CHECK(public_config("{\"a\": 1 /* https://u:p@h */}") == "{\n    \"a\": 1\n}");
}

/// Any value whose urls and commands hold "canary" where secrets stand.
Json any_value(std::mt19937& random, int depth) {
  static const std::vector<std::string> texts = {
      "https://u:canary@h/{}.tar",
      "HTTP://canary@h/a?sig=canary",
      "s3://b/{}.tar?X-Amz-Signature=canary",
      "https://h/{0..9}.tar#canary",
      "a.tar::https://u:canary@h/b.tar?canary::c.tar",
      "https://h/a.tar?canary::https://canary@g/b.tar",
      "pipe:curl -H \"Authorization: Bearer canary\" https://h/{}.tar",
      "pipe:canary=x curl h",
      "pipe:curl -u u:canary h::https://canary@h/a.tar",
      "shards/{}.tar",
      "\x01 plain"};
  const size_t kind = random() % (depth > 3 ? 4 : 6);
  if (kind == 0) return static_cast<int64_t>(random() % 1000);
  if (kind < 4) return texts[random() % texts.size()];
  Json value = kind == 4 ? Json::array() : Json::object();
  for (size_t i = 0, size = random() % 5; i < size; ++i) {
    Json part = any_value(random, depth + 1);
    if (kind == 4) {
      value.push_back(std::move(part));
    } else {
      value[std::string(1, static_cast<char>('a' + i))] = std::move(part);
    }
  }
  return value;
}

TEST_CASE("no canary of any config is stored, and a stored config can be compared") {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    Json config = Json::object();
    config["data"] = any_value(random, 0);
    config["train"] = any_value(random, 0);
    const std::string stored = public_config(config.dump(round % 2 == 0 ? 2 : -1));
    INFO(config.dump() << "\n" << stored);
    REQUIRE(stored.find("canary") == std::string::npos);
    REQUIRE(Json::accept(stored));
    REQUIRE(public_config(stored) == stored);
    REQUIRE(Json::parse(stored).flatten().size() == config.flatten().size());
  }
}

}  // namespace
}  // namespace dalle2
