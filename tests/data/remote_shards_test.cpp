// SPDX-License-Identifier: MIT
// Shards behind http: the same samples as from files, and what becomes of those that fail.

#include <catch2/catch.hpp>

#include "data/loader_support.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Keys = std::vector<std::string>;

namespace {

constexpr int64_t kShards = 6, kRows = 4;

/// Shards of a folder behind a server.
struct Remote {
  TempDir folder;
  LoopbackServer server;
  LoaderOptions options;

  explicit Remote(const std::function<HttpReply(const HttpRequest&, const HttpReply&)>& mistreat)
      : server([this, mistreat](const HttpRequest& request) {
          const std::string path = request.path.substr(0, request.path.find('?'));
          return mistreat(request, ranged_reply(request, read_file(folder.path() + path)));
        }) {
    setenv("DALLE2_NET_TIMEOUT", "0.3", 1);
    write_tiny_shards(folder.path(), kShards, kRows);
    options = options_over(folder.path(), kShards, 4);
    std::vector<std::string> urls = all_of(options.urls);
    for (std::string& url : urls)
      url = server.url(url.substr(folder.path().size()) + "?sig=a/secret");
    options.urls = urls;
  }
  ~Remote() { unsetenv("DALLE2_NET_TIMEOUT"); }
};

}  // namespace

TEST_CASE("shards over a bad network give the samples of the files, in their order") {
  Remote remote([](const HttpRequest& request, const HttpReply& reply) {
    if (request.number == 1) return http_reply(503, "");
    if (request.number == 2) return cut_after(reply, 1000);
    return reply;
  });
  CapturedLog log;
  LoaderOptions local = options_over(remote.folder.path(), kShards, 4);
  local.shuffle = remote.options.shuffle = true;
  ShardLoader files(config_with(0), local);
  const Keys expected = keys_of_epoch(files);
  REQUIRE(expected.size() == kShards * kRows);
  for (const int64_t workers : {0, 3}) {
    ShardLoader loader(config_with(workers), remote.options);
    CHECK(keys_of_epoch(loader) == expected);
    CHECK(loader.dropped().empty());
  }
  CHECK(log.count("secret") == 0);
}

TEST_CASE("shards that the server refuses are left out, named and counted") {
  Remote remote([](const HttpRequest& request, const HttpReply& reply) {
    if (request.path.starts_with("/shards/00001")) return http_reply(404, "");
    if (request.path.starts_with("/shards/00002")) return http_reply(500, "");
    return reply;
  });
  CapturedLog log;
  ShardLoader loader(config_with(2), remote.options);
  CHECK(keys_of_epoch(loader).size() == (kShards - 2) * kRows);
  CHECK(loader.dropped() == DropCounts{{"absent shard", 1}, {"unreachable shard", 1}});
  CHECK(log.count("/shards/00001.tar: the server answers with status 404") == 1);
  CHECK(log.count("secret") == 0);
}

TEST_CASE("more bad shards than max_bad_fraction allows end the epoch") {
  Remote remote([](const HttpRequest& request, const HttpReply& reply) {
    const bool bad =
        request.path.starts_with("/shards/00001") || request.path.starts_with("/shards/00003");
    return bad ? http_reply(404, "") : reply;
  });
  CapturedLog log;
  ShardDataConfig config = config_with(2);
  config.max_bad_fraction = 2.0 / 6;
  ShardLoader enough(config, remote.options);
  CHECK(keys_of_epoch(enough).size() == (kShards - 2) * kRows);
  config.max_bad_fraction = 0.2;
  ShardLoader loader(config, remote.options);
  loader.start_epoch(0);
  CHECK_THROWS_WITH(keys_of(loader),
                    Contains("2 of 6 shards cannot be read") && Contains("max_bad_fraction 0.2"));
}

TEST_CASE("one shard that stalls is left out; a network that is lost ends the epoch") {
  CapturedLog log;
  Remote one([](const HttpRequest& request, const HttpReply& reply) {
    return request.path.starts_with("/shards/00001") ? HttpReply{"", false, true} : reply;
  });
  ShardLoader loader(config_with(1), one.options);
  CHECK(keys_of_epoch(loader).size() == (kShards - 1) * kRows);
  CHECK(loader.dropped() == DropCounts{{"unreachable shard", 1}});

  Remote all([](const HttpRequest&, const HttpReply&) { return HttpReply{"", false, true}; });
  ShardLoader lost(config_with(1), all.options);
  lost.start_epoch(0);
  CHECK_THROWS_AS(lost.next(), NetworkError);
}

TEST_CASE("a loader that waits for the network ends at once") {
  Remote remote([](const HttpRequest&, const HttpReply&) { return HttpReply{"", false, true}; });
  setenv("DALLE2_NET_TIMEOUT", "60", 1);
  CapturedLog log;
  ShardLoader loader(config_with(2), remote.options);
  loader.start_epoch(0);
  while (remote.server.connections() == 0) {
  }
  loader.start_epoch(1);  // joins the threads of the first
  CHECK(loader.dropped().empty());
}
