// SPDX-License-Identifier: MIT
// The first samples of a split, shared out.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <string>

#include "data/loader/loader.h"
#include "data/loader_support.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

namespace dalle2::test {
namespace {

/// Key by place, of one share of the first `count` samples.
std::map<std::pair<int64_t, int64_t>, std::string> share_of(LoaderOptions options,
                                                            int64_t count,
                                                            const RankInfo& share,
                                                            int64_t workers,
                                                            DropCounts* dropped = nullptr) {
  options.most_samples = count;
  options.share = share;
  options.may_be_empty = true;
  ShardLoader loader(config_with(workers), options);
  loader.start_epoch(0);
  std::map<std::pair<int64_t, int64_t>, std::string> found;
  while (const auto batch = loader.next()) {
    REQUIRE(batch->places.size() == batch->keys.size());
    for (size_t i = 0; i < batch->keys.size(); ++i) {
      found[{batch->places[i].shard, batch->places[i].sample}] = batch->keys[i];
    }
  }
  if (dropped) *dropped = loader.dropped();
  return found;
}

TEST_CASE("the shares of the first samples are even, and have each of them once") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 5, 7);
  const LoaderOptions options = options_over(folder.path(), 5, 4);
  for (const int64_t workers : {0, 2}) {
    for (const int world : {1, 2, 3, 8}) {
      for (const int64_t count : {1, 20, 1000}) {
        INFO(world << " shares of " << count);
        const int64_t expected = std::min<int64_t>(count, 35);
        std::map<std::pair<int64_t, int64_t>, std::string> all;
        for (int rank = 0; rank < world; ++rank) {
          const auto own = share_of(options, count, {rank, world}, workers);
          const auto size = static_cast<int64_t>(own.size());
          CHECK(size <= expected / world + 2);
          CHECK(size >= expected / world - 1);
          for (const auto& [place, key] : own) {
            CHECK(key == tiny_key(place.first, place.second));
            CHECK(all.emplace(place, key).second);
          }
        }
        REQUIRE(static_cast<int64_t>(all.size()) == expected);
        CHECK(all.rbegin()->first == std::pair{(expected - 1) / 7, (expected - 1) % 7});
      }
    }
  }
}

TEST_CASE("a shard that one rank cannot read takes no sample from another share, or to another") {
  const TempDir whole, torn;
  write_tiny_shards(whole.path(), 3, 5);  // an odd number: a shard less moves an even count
  write_tiny_shards(torn.path(), 3, 5);
  std::filesystem::remove(torn / "shards/00001.tar");
  const auto options = options_over(whole.path(), 3, 4);
  const auto expected = share_of(options, 15, {1, 2}, 0);
  const CapturedLog log;
  const auto found = share_of(options_over(torn.path(), 3, 4), 15, {1, 2}, 0);
  CHECK(found.size() == 4);
  for (const auto& [place, key] : found) CHECK(expected.at(place) == key);
}

TEST_CASE("the pictures of other shares are not decoded") {
  const TempDir folder;
  Members members = tiny_members(0, 8);
  members.at(2 * 3).second = "no picture";  // of sample 3
  std::filesystem::create_directories(folder / "shards");
  write_tar(folder / "shards/00000.tar", members);
  const CapturedLog log;
  DropCounts dropped;
  CHECK(share_of(options_over(folder.path(), 1, 4), 8, {0, 2}, 0, &dropped).size() == 4);
  CHECK(dropped.empty());
  CHECK(share_of(options_over(folder.path(), 1, 4), 8, {1, 2}, 0, &dropped).size() == 3);
  CHECK(dropped == DropCounts{{drop::kBrokenPicture, 1}});
}

TEST_CASE("a share without a sample says nothing, where the first share has some") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 1, 3);
  const CapturedLog log;
  CHECK(share_of(options_over(folder.path(), 1, 4), 1, {1, 2}, 0).empty());
  CHECK(log.lines().empty());
}

}  // namespace
}  // namespace dalle2::test
