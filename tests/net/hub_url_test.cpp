// SPDX-License-Identifier: MIT
#include "net/hub/hub_api.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/clean_environment.h"

namespace dalle2::test {

using Catch::Matchers::Contains;

TEST_CASE("an address of the hub names a repository, a revision and a path") {
  const HubUrl plain = parse_hub_url("hf://o/n/a b/f.npy", HubPath::kFile);
  CHECK(plain.repo == "o/n");
  CHECK(plain.revision == "main");
  CHECK(plain.path == "a b/f.npy");
  CHECK_FALSE(plain.is_dataset);
  const HubUrl set = parse_hub_url("hf://datasets/o/n@refs%2Fpr%2F1/dir/", HubPath::kFolder);
  CHECK(set.repo == "o/n");
  CHECK(set.revision == "refs/pr/1");
  CHECK(set.path == "dir");
  CHECK(set.is_dataset);
  for (const char* url : {"hf://o/n/f", "hf://o/n@v1/a/f.npy", "hf://datasets/o/n@refs%2Fpr%2F1/f"})
    CHECK(parse_hub_url(url, HubPath::kFile).text() == url);
}

TEST_CASE("an address of the hub that names no path is refused") {
  for (const char* url : {"hf://",
                          "hf://o",
                          "hf://o/n",
                          "hf://o/n/",
                          "hf://o/n@/f",
                          "hf://o/../f",
                          "hf://o/n?x/f",
                          "hf://datasets/o/n"}) {
    CHECK_THROWS_AS(parse_hub_url(url, HubPath::kFile), ConfigError);
    CHECK_THROWS_WITH(parse_hub_url(url, HubPath::kFile),
                      Contains("expected hf://OWNER/NAME/FILE"));
  }
  CHECK(parse_hub_url("hf://datasets/o/n/", HubPath::kFolder).path.empty());
  CHECK_THROWS_WITH(parse_hub_url("hf://o", HubPath::kFolder),
                    Contains("expected hf://OWNER/NAME/FOLDER"));
}

TEST_CASE("a file of the hub is asked for with the login, at its revision") {
  CleanEnvironment environment({"HF_TOKEN", "HF_ENDPOINT"});
  environment.set("HF_TOKEN", "hf_Secret");
  environment.set("HF_ENDPOINT", "https://hub.example");
  const HttpGet get = hub_request("hf://datasets/o/n@v 1/a b/f.npy");
  CHECK(get.url == "https://hub.example/datasets/o/n/resolve/v%201/a%20b/f.npy");
  CHECK(get.headers == std::vector<std::string>{"Authorization: Bearer hf_Secret"});
  CHECK_THAT(get.shown, !Contains("Secret"));
}

}  // namespace dalle2::test
