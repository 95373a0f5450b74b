// SPDX-License-Identifier: MIT
#include "net/hub/hub_api.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/clean_environment.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// Nobody is logged in, but for what a test says.
struct HubEnvironment : CleanEnvironment {
  TempDir folder;

  HubEnvironment()
      : CleanEnvironment({"HF_TOKEN",
                          "HUGGING_FACE_HUB_TOKEN",
                          "HF_TOKEN_PATH",
                          "HF_HOME",
                          "XDG_CACHE_HOME",
                          "HOME",
                          "HF_ENDPOINT"}) {
    set("HOME", folder / "home");
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
};

std::string refusal_of(const std::optional<std::string>& token_path, bool plain_http = false) {
  try {
    find_hub_access(token_path, plain_http);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a token of the environment comes before token_path, and that before the login's file") {
  const HubEnvironment environment;
  CHECK(find_hub_access({}, false).token.empty());
  environment.write("home/.cache/huggingface/token", "hf_login\n");
  CHECK(find_hub_access({}, false).token == "hf_login");
  HubEnvironment::set("XDG_CACHE_HOME", environment.folder / "cache");
  environment.write("cache/huggingface/token", "hf_cache");
  CHECK(find_hub_access({}, false).token == "hf_cache");
  HubEnvironment::set("HF_HOME", environment.folder / "hub");
  environment.write("hub/token", "hf_home");
  CHECK(find_hub_access({}, false).token == "hf_home");
  HubEnvironment::set("HF_TOKEN_PATH", environment.write("elsewhere", "hf_elsewhere"));
  CHECK(find_hub_access({}, false).token == "hf_elsewhere");
  const std::string named = environment.write("named", "  hf_named \r\n");
  CHECK(find_hub_access(named, false).token == "hf_named");
  CHECK(find_hub_access(named, false).source == named);
  HubEnvironment::set("HUGGING_FACE_HUB_TOKEN", "hf_old");
  CHECK(find_hub_access(named, false).token == "hf_old");
  HubEnvironment::set("HF_TOKEN", "hf_new");
  CHECK(find_hub_access(named, false).token == "hf_new");
  CHECK(find_hub_access(named, false).source == "HF_TOKEN");
}

TEST_CASE("a token that cannot be one is refused without being shown") {
  const HubEnvironment environment;
  const std::string absent = environment.folder / "absent";
  CHECK(refusal_of(absent) ==
        "token_path: '" + absent +
            "' cannot be read\n  Write an access token into it (chmod 600), or "
            "give HF_TOKEN.");
  CHECK_THAT(refusal_of(environment.write("empty", "\n")), Contains("is empty"));
  const std::string page = environment.write("page", "canary canary\nmore");
  CHECK(refusal_of(page) ==
        page +
            ": holds no token: one word is expected, of letters, digits and signs.\n"
            "  Make one at https://huggingface.co/settings/tokens.");
  HubEnvironment::set("HF_TOKEN", "canary\x01");
  CHECK_THAT(refusal_of({}), Contains("HF_TOKEN: holds no token") && !Contains("canary"));
}

TEST_CASE("HF_ENDPOINT is an https address, or of this machine") {
  const HubEnvironment environment;
  CHECK(find_hub_access({}, false).endpoint == "https://huggingface.co");
  HubEnvironment::set("HF_ENDPOINT", "https://hub.example/ ");
  CHECK(find_hub_access({}, false).endpoint == "https://hub.example");
  HubEnvironment::set("HF_ENDPOINT", "HTTPS://hub.example");
  CHECK(find_hub_access({}, false).endpoint == "https://hub.example");
  HubEnvironment::set("HF_ENDPOINT", "http://localhost:8000");
  CHECK(find_hub_access({}, false).endpoint == "http://localhost:8000");
  HubEnvironment::set("HF_ENDPOINT", "http://hub.example");
  CHECK_THAT(refusal_of({}),
             Contains("HF_ENDPOINT is \"http://hub.example\": plain http to another"));
  CHECK(find_hub_access({}, /*plain_http=*/true).endpoint == "http://hub.example");
  HubEnvironment::set("HF_ENDPOINT", "https://user:canary@hub.example");
  CHECK_THAT(refusal_of({}),
             Contains("HF_ENDPOINT is \"https://hub.example\" with a login or a query") &&
                 !Contains("canary"));
  HubEnvironment::set("HF_ENDPOINT", "hub.example");
  CHECK(refusal_of({}) ==
        "HF_ENDPOINT is \"hub.example\": expected an address such as https://huggingface.co");
}

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
