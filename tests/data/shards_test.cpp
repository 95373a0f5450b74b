// SPDX-License-Identifier: MIT
#include "data/shards.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/data_fixture.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Numbers = std::vector<int64_t>;

namespace {

DecoderDataConfig range_config(int64_t start, int64_t end) {
  DecoderDataConfig config;
  config.start_shard = start;
  config.end_shard = end;
  return config;
}

void touch(const std::string& path) {
  std::ofstream(path) << "x";
}

}  // namespace

TEST_CASE("shards are split as in the specification") {
  const DecoderDataConfig ten = range_config(0, 9);
  const ShardSplit zero = split_shards(ten, 0, {});
  CHECK(zero.train == Numbers{4, 1, 7, 5, 3, 9, 0, 8});
  CHECK(zero.test == Numbers{6});
  CHECK(zero.val == Numbers{2});
  const ShardSplit other = split_shards(ten, 42, {});
  CHECK(other.train == Numbers{2, 6, 1, 8, 4, 5, 0, 9});
  CHECK(other.test == Numbers{3});
  CHECK(other.val == Numbers{7});
  const ShardSplit seven = split_shards(range_config(0, 6), 0, {});
  CHECK(seven.train == Numbers{4, 0, 5, 3, 2});
  CHECK(seven.test == Numbers{6});
  CHECK(seven.val == Numbers{1});
}

TEST_CASE("splits equal the reference's for drawn ranges, ranks and seeds") {
  for (const auto& entry : data_json("splits.json")) {
    const auto& in = entry["in"];
    DecoderDataConfig config = range_config(in["start"], in["end"]);
    config.splits = {in["train"], in["val"], in["test"]};
    const ShardSplit split = split_shards(config, in["seed"], {in["rank"], in["world"]});
    INFO(in.dump());
    CHECK(split.train == entry["out"]["train"].get<Numbers>());
    CHECK(split.val == entry["out"]["val"].get<Numbers>());
    CHECK(split.test == entry["out"]["test"].get<Numbers>());
  }
}

TEST_CASE("split sizes are rounded half to even") {
  // .75 * 6 = 4.5 -> 4 and .75 * 10 = 7.5 -> 8; away from zero would give 5.
  CHECK(split_shards(range_config(0, 5), 0, {}).train.size() == 4);
  CHECK(split_shards(range_config(0, 9), 0, {}).train.size() == 8);
}

TEST_CASE("ranks take contiguous slices and leave the remainder") {
  std::set<int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    const ShardSplit split = split_shards(range_config(100, 131), 5, {rank, 3});
    Numbers all = split.train;
    all.insert(all.end(), split.val.begin(), split.val.end());
    all.insert(all.end(), split.test.begin(), split.test.end());
    std::sort(all.begin(), all.end());
    Numbers slice(10);
    std::iota(slice.begin(), slice.end(), 100 + 10 * rank);
    CHECK(all == slice);
  }
}

TEST_CASE("too few shards and empty splits are named with what to do") {
  CHECK_THROWS_WITH(split_shards(range_config(0, 2), 0, {0, 4}), Contains("Not enough shards"));
  CHECK_THROWS_WITH(split_shards(range_config(0, 2), 0, {}),
                    Contains("no shard is left for the split \"test\"") &&
                        Contains("2 train, 1 val, 0 test") && Contains("At least 6 shards"));
  DecoderDataConfig no_val = range_config(0, 99);
  no_val.splits = {1.0, 0.0, 0.0};
  CHECK_THROWS_WITH(split_shards(no_val, 0, {}),
                    Contains("\"val\"") && Contains("No number of shards fills all three"));
  CHECK_THROWS_AS(split_shards(range_config(3, 2), 0, {}), ConfigError);
}

TEST_CASE("urls take the padded number where the placeholder stands") {
  CHECK(shard_url("a/{}.tar", 7, 6) == "a/000007.tar");
  CHECK(shard_url("a/{0}.tar", 1234567, 6) == "a/1234567.tar");
  CHECK(shard_url("a/x_{:05d}.tar", 7, 6) == "a/x_00007.tar");
  CHECK(shard_url("pipe:awk '{{print}}' {} -", 7, 3) == "pipe:awk '{print}' 007 -");
  CHECK_THROWS_WITH(shard_url("a/b.tar", 0, 6), Contains("no {}"));
  CHECK_THROWS_WITH(shard_url("a/{}/{}.tar", 0, 6), Contains("second placeholder"));
  CHECK_THROWS_WITH(shard_url("a/{name}.tar", 0, 6), Contains("unknown placeholder"));
  CHECK_THROWS_AS(shard_url("a/{", 0, 6), ConfigError);
}

TEST_CASE("url texts expand as webdataset expands them") {
  setenv("WDS_PLACE", "/data/x", 1);
  for (const auto& entry : data_json("urls.json")) {
    const std::string text = entry["in"];
    INFO(text);
    CHECK(expand_urls(text) == entry["out"].get<std::vector<std::string>>());
  }
  CHECK_THROWS_WITH(expand_urls("${ABSENT_PLACE}/x"), Contains("WDS_ABSENT_PLACE is not set"));
}

TEST_CASE("a shard's number is read from its file name") {
  CHECK(shard_number("/a.b/00012.tar.gz") == 12);
  CHECK(shard_number("pipe:s3cmd get s3://bucket/00007.tar -") == 7);
  CHECK(shard_number("https://host/00007.tar?sig=a/8.b") == 7);
  CHECK(shard_number("/a/img_12.tar") == -1);
  CHECK(shard_number("/a/.tar") == -1);
}

TEST_CASE("of ten million shards only the existing become urls, with one line for the rest") {
  const TempDir folder;
  for (const char* name :
       {"000003.tar", "000001.tar", "3.tar", "x.tar", "000002.txt", "9999999.tar"}) {
    touch(folder / name);
  }
  DecoderDataConfig config;  // 0 .. 9999999
  config.webdataset_base_url = folder / "{}.tar";
  CapturedLog log;
  const ShardSplit split = split_shards(config, 0, {});
  CHECK(split.train.size() == 7500000);
  std::vector<std::string> urls;
  for (const Numbers* part : {&split.train, &split.val, &split.test}) {
    try {
      for (const std::string& url : shard_urls(config, *part, "some")) urls.push_back(url);
    } catch (const DataError&) {
      // A part that has none of the three.
    }
  }
  std::sort(urls.begin(), urls.end());
  CHECK(urls == std::vector<std::string>{
                    folder / "000001.tar", folder / "000003.tar", folder / "9999999.tar"});
  CHECK(log.lines().size() <= 3);
  CHECK(log.count("shards are absent") >= 1);
}

TEST_CASE("shards in numbered folders and behind file: are found") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "part_01");
  std::filesystem::create_directories(folder / "part_02");
  touch(folder / "part_01/x.tar");
  DecoderDataConfig config;
  config.webdataset_base_url = "file:" + folder / "part_{}/x.tar";
  config.shard_width = 2;
  CapturedLog log;
  CHECK(shard_urls(config, {2, 1, 0}, "val") ==
        std::vector<std::string>{"file:" + folder / "part_01/x.tar"});
  CHECK(log.count("val: 2 of 3 shards are absent") == 1);
}

TEST_CASE("a split without one existing shard says which shards there are") {
  const TempDir folder;
  touch(folder / "000004.tar");
  touch(folder / "000005.tar");
  DecoderDataConfig config;
  config.webdataset_base_url = folder / "{}.tar";
  CHECK_THROWS_WITH(shard_urls(config, {1, 2}, "test"),
                    Contains("split \"test\"") && Contains("2 such files exist: shards 4 to 5") &&
                        Contains("/data/end_shard to 5"));
  config.webdataset_base_url = folder / "absent/{}.tar";
  CHECK_THROWS_WITH(shard_urls(config, {1, 2}, "test"), Contains("no such file exists"));
}

TEST_CASE("shards that cannot be probed all become urls") {
  DecoderDataConfig config;
  config.webdataset_base_url = "pipe:cat {}.tar";
  CHECK(shard_urls(config, {5, 2}, "train") ==
        std::vector<std::string>{"pipe:cat 000005.tar", "pipe:cat 000002.tar"});
}
