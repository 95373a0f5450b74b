// SPDX-License-Identifier: MIT
#include "data/shards/shards.h"

#include <catch2/catch.hpp>

#include "base/timer.h"
#include "data/data_fixture.h"
#include "data/loader_support.h"
#include "data/shards/url_patterns.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Positions = std::vector<uint32_t>;

namespace {

/// The url of a shard by a template.
std::string shard_url(const std::string& base, int64_t shard, int64_t width) {
  return parse_url_template(base, width, "/data/webdataset_base_url").with(shard);
}

ShardDataConfig range_config(int64_t start, int64_t end) {
  ShardDataConfig config;
  config.start_shard = start;
  config.end_shard = end;
  config.webdataset_base_url = std::string("nowhere/{}.tar");
  return config;
}

ShardSplit split_of(const ShardDataConfig& config, int64_t seed, RankInfo rank = {}) {
  return split_shards(config.splits, ShardList(config), seed, rank);
}

ShardUrls urls_of(const ShardDataConfig& config,
                  const std::vector<uint32_t>& positions,
                  const std::string& split) {
  return shard_urls(std::make_shared<const ShardList>(config), positions, split);
}

ShardDataConfig config_at(const std::string& url) {
  ShardDataConfig config;
  config.webdataset_base_url = std::string(url);
  return config;
}

void touch(const std::string& path) {
  std::ofstream(path) << "x";
}

}  // namespace

TEST_CASE("splits equal the reference's for drawn ranges, ranks and seeds") {
  const auto splits = data_json("splits.json");
  REQUIRE(splits.size() >= 60);
  for (const auto& entry : splits) {
    const auto& in = entry["in"];
    ShardDataConfig config = range_config(in["start"], in["end"]);
    config.splits = {in["train"], in["val"], in["test"]};
    const ShardSplit split = split_of(config, in["seed"], {in["rank"], in["world"]});
    INFO(in.dump());
    for (const auto& [name, part] :
         {std::pair{"train", split.train}, {"val", split.val}, {"test", split.test}}) {
      auto numbers = entry["out"][name].get<std::vector<int64_t>>();
      for (int64_t& number : numbers) number -= config.start_shard;
      CHECK(part == Positions(numbers.begin(), numbers.end()));
    }
  }
}

TEST_CASE("too few shards and empty splits are named with what to do") {
  CHECK_THROWS_WITH(split_of(range_config(3, 5), 0, {0, 6}),
                    Contains("/data/end_shard: Not enough shards to split evenly: 3 for 6 ranks "
                             "(start_shard 3 to end_shard 5)."));
  CHECK_THROWS_WITH(split_of(range_config(0, 2), 0, {}),
                    Contains("no shard is left for the split \"test\"") &&
                        Contains("2 train, 1 val, 0 test") && Contains("6 shards are enough"));
  ShardDataConfig no_val = range_config(0, 99);
  no_val.splits = {1.0, 0.0, 0.0};
  CHECK_THROWS_WITH(split_of(no_val, 0, {}),
                    Contains("\"val\"") && Contains("No number of shards fills all three"));
  CHECK_THROWS_AS(split_of(range_config(3, 2), 0, {}), ConfigError);
}

TEST_CASE("urls take the padded number where the placeholder stands") {
  CHECK(shard_url("a/{}.tar", 7, 6) == "a/000007.tar");
  CHECK(shard_url("a/{}.tar", 1234567, 6) == "a/1234567.tar");
  CHECK(shard_url("a/x_{}.tar", 7, 5) == "a/x_00007.tar");
  CHECK(shard_url("pipe:awk '{{print}}' {} -", 7, 3) == "pipe:awk '{print}' 007 -");
  CHECK_THROWS_WITH(shard_url("a/b.tar", 0, 6), Contains("no {}"));
  CHECK_THROWS_WITH(shard_url("a/{}/{}.tar", 0, 6), Contains("second placeholder"));
  CHECK_THROWS_WITH(shard_url("a/{name}.tar", 0, 6), Contains("unknown placeholder"));
  CHECK_THROWS_AS(shard_url("a/{", 0, 6), ConfigError);
}

TEST_CASE("url texts expand as webdataset expands them") {
  setenv("WDS_PLACE", "/data/x", 1);
  const auto urls = data_json("urls.json");
  REQUIRE(urls.size() >= 17);
  for (const auto& entry : urls) {
    const std::string text = entry["in"];
    INFO(text);
    CHECK(expand_urls(text, "urls") == entry["out"].get<std::vector<std::string>>());
  }
  CHECK_THROWS_WITH(expand_urls("${ABSENT_PLACE}/x", "SHARDS"),
                    Contains("SHARDS: ") && Contains("WDS_ABSENT_PLACE is not set"));
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
  ShardDataConfig config = config_at(folder / "{}.tar");  // 0 .. 9999999
  CapturedLog log;
  const ShardSplit split = split_of(config, 0, {});
  CHECK(split.train.size() == 7500000);
  std::vector<std::string> urls;
  for (const Positions* part : {&split.train, &split.val, &split.test}) {
    try {
      const auto found = all_of(urls_of(config, *part, "some"));
      urls.insert(urls.end(), found.begin(), found.end());
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
  ShardDataConfig config = config_at("file:" + folder / "part_{}/x.tar");
  config.shard_width = 2;
  CapturedLog log;
  CHECK(all_of(urls_of(config, {2, 1, 0}, "val")) ==
        std::vector<std::string>{"file:" + folder / "part_01/x.tar"});
  CHECK(log.count("val: 2 of 3 shards are absent: file:" + folder / "part_00/x.tar, file:" +
                  folder / "part_02/x.tar (") == 1);
}

TEST_CASE("shards with another number of digits are an error that names the key to change") {
  const TempDir folder;
  touch(folder / "00004.tar");
  ShardDataConfig config = config_at(folder / "{}.tar");
  CHECK_THROWS_WITH(
      urls_of(config, {1, 2}, "train"),
      Contains("\n  " + (folder / "00004.tar") +
               " has a number padded to 5 digits, and /data/shard_width is 6: set it to 5."));
  // A file without a leading zero fits several widths: the others decide.
  touch(folder / "10000.tar");
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "train"), Contains("set it to 5."));
  config.webdataset_base_url = folder / "plain/{}.tar";
  std::filesystem::create_directories(folder / "plain");
  touch(folder / "plain/10.tar");
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "train"),
                    Contains("plain/10.tar has a number padded to 2 digits"));
  touch(folder / "plain/9.tar");
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "train"),
                    Contains("plain/9.tar has a number padded to 1 digit,"));
  config.webdataset_base_url = folder / "other{}.tar";
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "train"),
                    Contains("at the shards; {} is the shard number"));
}

TEST_CASE("a split without one existing shard says which shards there are") {
  const TempDir folder;
  touch(folder / "000004.tar");
  touch(folder / "000005.tar");
  ShardDataConfig config = config_at(folder / "{}.tar");
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "test"),
                    Contains("none of the 2 shards of the split \"test\" exists") &&
                        Contains("2 such files exist: shards 4 to 5") &&
                        Contains("/data/end_shard to 5"));
  // The range is right already: what is missing lies within it.
  config.start_shard = 4;
  config.end_shard = 15;
  touch(folder / "000015.tar");
  CHECK_THROWS_WITH(
      urls_of(config, {7, 2}, "val"),
      Contains("By /seed and /data/splits \"val\" takes shards 6, 11: bring them back") &&
          !Contains("Set /data/start_shard"));
  CHECK_THROWS_WITH(urls_of(config, {9, 8, 7, 6, 5, 4, 3, 2, 10}, "val"),
                    Contains("shards 6, 7, 8, 9, 10, 11, 12, 13 and 1 more: bring"));
  config.end_shard = 16;
  CHECK_THROWS_WITH(urls_of(config, {7, 2}, "val"), Contains("/data/end_shard to 15"));
  config.webdataset_base_url = folder / "absent/{}.tar";
  CHECK_THROWS_WITH(urls_of(config, {1, 2}, "test"), Contains("no such file exists"));
}

TEST_CASE("shards that cannot be probed all become urls") {
  ShardDataConfig config = config_at("pipe:cat {}.tar");
  CHECK(all_of(urls_of(config, {5, 2}, "train")) ==
        std::vector<std::string>{"pipe:cat 000005.tar", "pipe:cat 000002.tar"});
}

TEST_CASE("braces, lists of texts and joined urls are shards by position") {
  ShardDataConfig config = config_at("s3://b/{000..011}.tar::https://h/{x,y}/{3..4}.tar?s=1");
  const ShardList list(config);
  REQUIRE(list.size() == 16);
  CHECK(list.url(11) == "s3://b/011.tar");
  CHECK(list.url(13) == "https://h/x/4.tar?s=1");
  CHECK(list.url(15) == "https://h/y/4.tar?s=1");
  CHECK(split_of(config, 0).train.size() == 12);
  CHECK(shard_number(urls_of(config, {15, 0}, "val")[0]) == 4);

  config.webdataset_base_url =
      std::vector<std::string>{"http://a/{}.tar", "http://b/7.tar", "pipe:cat {c,d}.tar"};
  config.start_shard = 5;
  config.end_shard = 6;
  const ShardList several(config);
  std::string urls;
  for (int64_t i = 0; i < several.size(); ++i) urls += several.url(i) + "\n";
  CHECK(urls ==
        "http://a/000005.tar\nhttp://a/000006.tar\nhttp://b/7.tar\npipe:cat c.tar\n"
        "pipe:cat d.tar\n");
  CHECK_THROWS_WITH(split_of(config, 0, {0, 6}),
                    Contains("/data/webdataset_base_url: Not enough shards") &&
                        Contains("http://a/{}.tar and 2 more"));
}

TEST_CASE("a list costs what its addresses do, however many they are") {
  std::string list = "shards/000000.tar";
  for (int i = 1; i < 100'000; ++i) list += fmt::format("::shards/{:06}.tar", i);
  ShardDataConfig config = config_at(list);
  const Timer timer;
  const ShardList shards(config);
  CHECK(shards.size() == 100'000);
  CHECK(shards.url(99'999) == "shards/099999.tar");
  CHECK(timer.seconds() < 10);  // each over the whole text: a minute
}

TEST_CASE("lists within lists are expanded to a depth, and no text ends the program") {
  const auto nested = [](int levels) {
    std::string text = "x";
    for (int i = 0; i < levels; ++i) text = "{a," + text + "}";
    return text;
  };
  CHECK(expand_urls(nested(30), "k").size() == 31);
  CHECK_THROWS_WITH(expand_urls(nested(33), "k"), Contains("braces nested more than 32 deep"));
  CHECK(expand_urls("pipe:" + nested(15'000), "k").size() == 34);  // commands are not judged
  CHECK_THROWS_WITH(expand_urls(std::string(100'000, 'x'), "k"),
                    Contains("a url of 100000 bytes; the longest allowed has 65536"));
}

TEST_CASE("a brace without its other half is refused") {
  ShardDataConfig config = config_at("data/{000..012.tar");
  CHECK_THROWS_WITH(
      ShardList(config),
      Contains("/data/webdataset_base_url: \"data/{000..012.tar\": at character 6: the { has no "
               "closing brace") &&
          Contains("{000..123}"));
  config.webdataset_base_url = std::string("data/{000..012}}.tar");
  CHECK_THROWS_WITH(ShardList(config), Contains("at character 16: the } has no opening brace"));
}

TEST_CASE("braces that are neither a range, a list nor a placeholder are refused with the place") {
  for (const char* body : {"0..x",
                           "x..9",
                           "a..bc",
                           "-3..3",
                           "0..9999999999999999999",
                           "0..9..",
                           "0..9..x",
                           "..",
                           "1..2..3..4"}) {
    INFO(body);
    CHECK_THROWS_WITH(expand_urls(std::string("s/{") + body + "}.tar", "SHARDS"),
                      Contains(std::string("SHARDS: \"s/{") + body + "}.tar\": at character 3: {" +
                               body + "} is not a range of whole numbers or of two letters") &&
                          Contains("Write a range as {000..123}"));
  }
  CHECK(expand_urls("{{0..1},x..y}/{a}/{0..2..2}", "").size() == 6);
  for (const char* command : {"pipe:echo {0..x}", "pipe:echo '{' {1,2}"})
    CHECK(expand_urls(command, "").size() == 1);  // commands have braces of their own
  CHECK_THROWS_WITH(shard_url("s/{}}.tar", 0, 6),
                    Contains("\"s/{}}.tar\": at character 5: the } has no opening brace") &&
                        Contains("}} for a plain brace"));
  CHECK_THROWS_WITH(shard_url("s/{{}.tar", 0, 6),
                    Contains("at character 5: the } has no opening brace"));
  CHECK_THROWS_WITH(shard_url("s/{", 0, 6), Contains("at character 3: the { has no closing brace"));
}

TEST_CASE("of local shards by name those that exist are taken") {
  const TempDir folder;
  touch(folder / "a_3.tar");
  touch(folder / "a_5.tar");
  ShardDataConfig config = config_at(folder / "a_{0..9}.tar");
  CapturedLog log;
  CHECK(all_of(urls_of(config, {9, 5, 4, 3}, "train")) ==
        std::vector<std::string>{folder / "a_5.tar", folder / "a_3.tar"});
  CHECK(log.count("train: 2 of 4 shards are absent: " + folder / "a_4.tar, " +
                  folder / "a_9.tar (") == 1);
  CHECK(urls_of(config, {9, 8, 7, 5, 4, 2}, "val").size() == 1);
  CHECK(log.count("val: 5 of 6 shards are absent: " + folder / "a_2.tar, " + folder / "a_4.tar, " +
                  folder / "a_7.tar and 2 more (") == 1);
  CHECK_THROWS_WITH(
      urls_of(config, {1, 2}, "val"),
      Contains("none of the 2 shards of the split \"val\"") && Contains("Check the paths"));
}

TEST_CASE("of a long list a message shows the first address and how many more there are") {
  const TempDir folder;
  touch(folder / "a_3.tar");
  ShardDataConfig config;
  std::string list = folder / "a_3.tar";
  for (int i = 0; i < 5000; ++i) list += fmt::format("::{}{}.tar", folder / "b_", i);
  config.webdataset_base_url = list;
  CapturedLog log;
  CHECK(urls_of(config, {0, 1, 2}, "train").size() == 1);
  CHECK(log.count("(" + folder / "a_3.tar and 5,000 more: no such file exists)") == 1);
  for (const auto& line : log.lines()) CHECK(line.text.size() < 2000);
  CHECK(short_shards({"https://u:p@h/a.tar?s::http://h/b.tar", "c.tar"}) ==
        "https://h/a.tar and 2 more");
  CHECK(short_shards({"a/{}.tar"}) == "a/{}.tar");
  std::string names = "x";
  for (int i = 0; i < 5000; ++i) names += fmt::format(",{}", i);
  config.webdataset_base_url = folder / "{" + names + "}.tar";
  CHECK_THROWS_WITH(urls_of(config, {0, 1, 2}, "train"),
                    Catch::Contains("...") && !Catch::Contains("4000"));
}

TEST_CASE("a pattern of local and remote shards looks for the local ones") {
  const TempDir folder;
  touch(folder / "a_3.tar");
  ShardDataConfig config = config_at("{" + folder.path() + ",http://h}/a_{3..4}.tar");
  CapturedLog log;
  CHECK(all_of(urls_of(config, {0, 1, 2, 3}, "train")) ==
        std::vector<std::string>{folder / "a_3.tar", "http://h/a_3.tar", "http://h/a_4.tar"});
}

TEST_CASE("too many shards are refused") {
  ShardDataConfig config = config_at("http://h/{0..99999}/{0..99999}.tar");
  CHECK_THROWS_WITH(ShardList(config),
                    Contains("http://h/{0..99999}/{0..99999}.tar stands for more than 10,000,000"));
  config.webdataset_base_url = std::string("http://h/{}.tar");
  config.end_shard = 100'000'000;
  CHECK_THROWS_WITH(ShardList(config), Contains("100,000,000 shards or more"));
  config.webdataset_base_url = std::string("{x,pi{pe:rm,p}} {1,2}");
  CHECK(ShardList(config).url(3) == "pipe:rm 2");
  CHECK_THROWS_WITH(expand_urls("{0..999999999}", ""), Contains("more than 10,000,000 shards"));
  CHECK_THROWS_WITH(expand_urls("{1..5}::{1..6}", "", 10), Contains("more than 10 shards"));
  CHECK(expand_urls("{1..5}::{1,2}{3,4}", "", 10).size() == 9);
}
