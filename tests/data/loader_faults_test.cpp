// SPDX-License-Identifier: MIT
// Bad shards, pictures and embeddings: named, counted, left out.

#include <catch2/catch.hpp>
#include <set>

#include "base/text.h"
#include "data/loader_support.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;
using Keys = std::vector<std::string>;

TEST_CASE("a broken picture is left out, named and counted; the run goes on") {
  const TempDir folder;
  Members members = tiny_members(0, 4);
  members[2].second = "these are no pixels";
  members[4].second.resize(members[4].second.size() / 2);
  write_tar(folder / "shards/00000.tar", members);
  for (const int64_t workers : {0, 3}) {
    CapturedLog log;
    ShardLoader loader(config_with(workers), options_over(folder.path(), 1, 8));
    CHECK(keys_of_epoch(loader) == Keys{tiny_key(0, 0), tiny_key(0, 3)});
    CHECK(loader.dropped() == DropCounts{{"broken picture", 2}});
    CHECK(log.count("train: left out (broken picture): shard 00000.tar, sample 000000001") == 1);
    CHECK(log.count("(2 so far)") == 1);
  }
}

TEST_CASE("absent and damaged shards are warnings, and whole samples before the damage count") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 4);
  std::filesystem::remove(folder / "shards/00000.tar");
  const std::string path = folder / "shards/00001.tar";
  const std::string content = read_file(path);
  // Behind the third sample's picture: header and 512 bytes of content for each member.
  write_file_atomically(path, content.substr(0, 512 * 2 * 5 + 300));
  CapturedLog log;
  ShardLoader loader(config_with(2), options_over(folder.path(), 3, 8));
  const Keys keys = keys_of_epoch(loader);
  CHECK(keys.size() == 6);
  CHECK(keys[1] == tiny_key(1, 1));
  CHECK(keys[2] == tiny_key(2, 0));
  CHECK(loader.dropped() == DropCounts{{"absent shard", 1}, {"damaged shard", 1}});
  CHECK(log.count("00000.tar") == 1);
  CHECK(log.count("00001.tar") == 1);
}

TEST_CASE("a missing caption is empty without a word, or drops the sample if captions are needed") {
  const TempDir folder;
  Members members = tiny_members(0, 4);
  members.erase(members.begin() + 3);
  members.erase(members.begin() + 4);
  write_tar(folder / "shards/00000.tar", members);
  LoaderOptions options = options_over(folder.path(), 1, 8);
  {
    CapturedLog log;
    ShardLoader loader(config_with(1), options);
    CHECK(first_of(loader).captions == Keys{"caption 000000000\n", "", "", "caption 000000003\n"});
    CHECK(log.lines().empty());
    CHECK(loader.dropped().empty());
  }
  options.need_captions = true;
  CapturedLog log;
  ShardLoader loader(config_with(1), options);
  CHECK(keys_of_epoch(loader) == Keys{tiny_key(0, 0), tiny_key(0, 3)});
  CHECK(loader.dropped() == DropCounts{{"no caption", 2}});
}

TEST_CASE("captions become text as the config says, and those without a text are none") {
  const TempDir folder;
  const std::vector<std::string> captions = {"plain",
                                             "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
                                             "\xef\xbb\xbf"
                                             "marked",
                                             "\xea\xee\xf2",
                                             std::string("\0u\0t\0f", 6),
                                             "",
                                             " \u3000\n",
                                             "\x98",  // no character of windows-1251
                                             "one\n\ntwo\nthree"};
  Members members = tiny_members(0, static_cast<int64_t>(captions.size()));
  for (size_t i = 0; i < captions.size(); ++i) members[2 * i + 1].second = captions[i];
  write_tar(folder / "shards/00000.tar", members);
  ShardDataConfig config = config_with(1);
  config.caption_encoding = "windows-1251";
  LoaderOptions options = options_over(folder.path(), 1, 16);
  options.need_captions = true;
  const auto captions_of = [&](int64_t epoch) {
    ShardLoader loader(config, options);
    return first_of(loader, epoch).captions;
  };
  CapturedLog log;
  ShardLoader loader(config, options);
  CHECK(first_of(loader).captions ==
        Keys{"plain", captions[1], "marked", "\u043a\u043e\u0442", "utf", "one\n\ntwo\nthree"});
  CHECK(loader.dropped() ==
        DropCounts{{drop::kNoCaption, 3}, {drop::kAssumedEncoding, 1}, {drop::kSeveralLines, 1}});
  CHECK(log.count("train: left out (sample without caption): shard 00000.tar, sample " +
                  tiny_key(0, 5) + ": its caption is empty (1 so far)") == 1);
  CHECK(log.count(tiny_key(0, 7) + ": its caption is neither UTF-8 nor windows-1251") == 1);
  CHECK(log.count("train: used all the same (caption of an assumed encoding): shard 00000.tar, "
                  "sample " +
                  tiny_key(0, 3) +
                  ": its caption is not UTF-8, and is read as "
                  "windows-1251 (caption_encoding) (1 so far)") == 1);
  CHECK(log.count(tiny_key(0, 8) + ": its caption has 3 lines, and all are used") == 1);
  config.caption_lines = CaptionLines::first;
  CHECK(captions_of(0).back() == "one");
  config.caption_lines = CaptionLines::drawn;
  std::set<std::string> drawn;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::string line = captions_of(epoch).back();
    config.num_workers = 3;  // the same line for any number of threads
    CHECK(captions_of(epoch).back() == line);
    config.num_workers = 1;
    drawn.insert(line);
  }
  CHECK(drawn == std::set<std::string>{"one", "two", "three"});
  config.caption_encoding = "windows1521";
  CHECK_THROWS_WITH(ShardLoader(config, options),
                    Contains("/data/caption_encoding: ICU has no encoding \"windows1521\""));
  config.caption_encoding = "windows-1252";
  options.need_captions = false;  // all pictures are used then, without a word
  const size_t told = log.lines().size();
  CHECK(captions_of(0).size() == captions.size());
  CHECK(log.lines().size() == told);
}

TEST_CASE("fields jpg, jpeg, png and webp are pictures, in this order; others are left out") {
  const TempDir folder;
  const std::string red = encode_png(plain_picture(4, 4, 255, 0, 0));
  const std::string black = encode_png(plain_picture(4, 4, 0, 0, 0));
  Members members;
  for (const char* name : {"a.jpg", "b.JPEG", "c.png", "d.webp"}) members.emplace_back(name, red);
  members.emplace_back("e.webp", black);
  members.emplace_back("e.jpeg", red);
  members.emplace_back("f.gif", red);
  members.emplace_back("dir/g.h.jpg", red);  // its field is h.jpg
  members.emplace_back("__meta__/i.jpg", red);
  members.emplace_back("dir.x/k.jpg", red);
  write_tar(folder / "shards/00000.tar", members);
  CapturedLog log;
  ShardLoader loader(config_with(1), options_over(folder.path(), 1, 8));
  const Batch batch = first_of(loader);
  CHECK(batch.keys == Keys{"a", "b", "c", "d", "e", "dir.x/k"});
  CHECK(batch.images.select(1, 0).min().item<float>() == 1.0F);
  CHECK_FALSE(loader.next());
  CHECK(loader.dropped() == DropCounts{{"no picture", 2}, {"several pictures", 1}});
}

TEST_CASE("samples and shards without an embedding are left out by reason") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 4, 3);
  std::filesystem::remove(folder / "img_emb/img_emb_00000.npy");
  const std::vector<float> zero_second = {1, 1, 1, 0, -0.0F, 0};
  write_npy_float32(folder / "img_emb/img_emb_00001.npy", {2, 3}, zero_second.data());
  write_file_atomically(folder / "img_emb/img_emb_00002.npy", "not an array");
  write_file_atomically(folder / "img_emb/README.txt", "the reference would stop here");
  ShardDataConfig config = config_with(2);
  config.img_embeddings_url = folder / "img_emb";
  LoaderOptions options = options_over(folder.path(), 4, 8);
  std::vector<std::string> urls = all_of(options.urls);
  urls.push_back(folder / "shards/named.tar");
  options.urls = std::move(urls);
  options.need_image_embeds = true;
  CapturedLog log;
  ShardLoader loader(config, options);
  CHECK(keys_of_epoch(loader) ==
        Keys{tiny_key(1, 0), tiny_key(3, 0), tiny_key(3, 1), tiny_key(3, 2)});
  CHECK(loader.dropped() == DropCounts{{"no image embedding", 1},
                                       {"shard without embeddings", 3},
                                       {"zero image embedding", 1}});
  CHECK(log.count("000010002: no row 2 among its shard's 2 rows of image embeddings") == 1);
  CHECK(log.count("000010001: row 1 is all zero") == 1);
}

TEST_CASE("a broken file of embeddings costs its shard, the first one too") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 4, 3);
  write_file_atomically(folder / "img_emb/img_emb_00000.npy", "not an array");
  ShardDataConfig config = config_with(2);
  config.img_embeddings_url = folder / "img_emb";
  config.max_bad_fraction = 0.25;
  LoaderOptions options = options_over(folder.path(), 4, 8);
  options.need_image_embeds = true;
  options.image_embed_dim = 3;
  CapturedLog log;
  ShardLoader loader(config, options);
  CHECK(keys_of_epoch(loader).size() == 9);
  CHECK(loader.dropped() == DropCounts{{"shard without embeddings", 1}});
  CHECK(log.count("left out (shard without embeddings): ") == 1);
  CHECK(log.count("img_emb_00000.npy: not a NumPy .npy file") == 1);
  // Shards that are lost for their embeddings count with those that cannot be read.
  std::filesystem::remove(folder / "shards/00002.tar");
  ShardLoader again(config, options);
  CHECK_THROWS_WITH(
      keys_of_epoch(again),
      Contains("2 of 4 shards cannot be read, more than /data/max_bad_fraction 0.25"));
}

TEST_CASE("embeddings of another width are left out; if all are, that is an error") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 2);
  write_tiny_embeddings(folder / "img_emb/img_emb_00001.npy", 1, 2, 5);
  ShardDataConfig config = config_with(1);
  config.img_embeddings_url = folder / "img_emb";
  LoaderOptions options = options_over(folder.path(), 3, 8);
  options.need_image_embeds = true;
  CapturedLog log;
  ShardLoader loader(config, options);
  CHECK(keys_of_epoch(loader).size() == 4);
  CHECK(loader.dropped() == DropCounts{{"embedding of another shape", 1}});
  options.image_embed_dim = 768;
  CHECK_THROWS_WITH(
      ShardLoader(config, options),
      Contains("img_emb_00000.npy: expected image embeddings of width 768 (image_embed_dim in "
               "/decoder/unets), got width 3\n  Set image_embed_dim to 3, or give embeddings of "
               "width 768."));
}

TEST_CASE("embedding folders that cannot be right are errors at the start") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 2);
  LoaderOptions options = options_over(folder.path(), 2, 8);
  options.need_image_embeds = true;
  ShardDataConfig config = config_with(1);
  CHECK_THROWS_WITH(ShardLoader(config, options), Contains("No image embeddings source specified"));
  config.img_embeddings_url = folder / "img_emb";
  write_tiny_embeddings(folder / "img_emb/text_emb_00001.npy", 1, 2);
  CHECK_THROWS_WITH(ShardLoader(config, options), Contains("embeddings of two kinds"));
  std::filesystem::remove(folder / "img_emb/text_emb_00001.npy");
  write_tiny_embeddings(folder / "img_emb/img_emb_1.npy", 1, 2);
  CHECK_THROWS_WITH(ShardLoader(config, options), Contains("two embedding files for shard 1"));
  std::filesystem::remove_all(folder / "img_emb");
  write_tiny_embeddings(folder / "img_emb/img_emb_00077.npy", 77, 2);
  CHECK_THROWS_WITH(ShardLoader(config, options),
                    Contains("none of the 2 shards of the split \"train\" has an embedding file"));
}

TEST_CASE("an epoch without one usable sample is an error that counts the reasons") {
  const TempDir folder;
  Members members = tiny_members(0, 3);
  members[0].second = members[2].second = "x";
  members[4].first = "000000002.gif";
  write_tar(folder / "shards/00000.tar", members);
  LoaderOptions options = options_over(folder.path(), 2, 2);
  for (const bool resample : {false, true}) {
    for (const int64_t workers : {0, 2}) {
      CapturedLog log;
      options.resample = resample;
      ShardLoader loader(config_with(workers), options);
      loader.start_epoch(0);
      CHECK_THAT(test::message_of<DataError>([&] { loader.next(); }),
                 Contains("no usable sample in 2 shards") && Contains("broken pictures") &&
                     Contains(" without picture") && Contains("absent shard"));
    }
  }
  // Where nothing hangs on it, it is a warning.
  options.resample = false;
  {
    CapturedLog log;
    LoaderOptions lenient = options;
    lenient.may_be_empty = true;
    ShardLoader loader(config_with(1), lenient);
    loader.start_epoch(0);
    CHECK_FALSE(loader.next());
    CHECK(log.count("no usable sample") == 1);
  }
  // Nothing to decode at all.
  options.urls = {folder / "shards/absent.tar"};
  CapturedLog log;
  ShardLoader loader(config_with(1), options);
  CHECK_THROWS_WITH(first_of(loader),
                    Contains("no usable sample in 1 shard (") && Contains("1 absent shard."));
}

TEST_CASE("pictures of different sizes in a batch name both and the remedy") {
  const TempDir folder;
  Members members = tiny_members(0, 4);
  members[6].second = encode_png(plain_picture(5, 4, 1, 1, 1));
  write_tar(folder / "shards/00000.tar", members);
  for (const int64_t workers : {0, 3}) {
    ShardLoader loader(config_with(workers), options_over(folder.path(), 1, 2));
    CHECK(first_of(loader).keys == Keys{tiny_key(0, 0), tiny_key(0, 1)});
    CHECK_THROWS_WITH(loader.next(),
                      Contains("000000002") && Contains("4 x 4") && Contains("000000003") &&
                          Contains("5 x 4") && Contains("CenterCrop"));
  }
}

TEST_CASE("many drops of one reason are told a few times, and counted all") {
  const TempDir folder;
  Members members;
  for (int64_t row = 0; row < 250; ++row) members.emplace_back(tiny_key(0, row) + ".gif", "x");
  members.emplace_back(tiny_key(0, 999) + ".png", encode_png(plain_picture(4, 4, 1, 2, 3)));
  write_tar(folder / "shards/00000.tar", members);
  CapturedLog log;
  ShardLoader loader(config_with(2), options_over(folder.path(), 1, 2));
  CHECK(keys_of_epoch(loader).size() == 1);
  CHECK(loader.dropped() == DropCounts{{"no picture", 250}});
  CHECK(log.count("left out (sample without picture): ") == 3);
  CHECK(log.count("train: left out 10 times so far (sample without picture), such as ") == 1);
  CHECK(log.count("train: left out 100 times so far (sample without picture), such as ") == 1);
}

TEST_CASE("repeated members are left out and named") {
  const TempDir folder;
  Members members = tiny_members(0, 2);
  members.insert(members.begin() + 1, {tiny_key(0, 0) + ".png", "again"});
  write_tar(folder / "shards/00000.tar", members);
  CapturedLog log;
  ShardLoader loader(config_with(1), options_over(folder.path(), 1, 2));
  CHECK(keys_of_epoch(loader).size() == 2);
  CHECK(loader.dropped() == DropCounts{{"repeated key or field", 1}});
}

TEST_CASE("a tar that may have been cut between two members is reported once, and used") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 4);
  const std::string path = folder / "shards/00001.tar";
  write_file_atomically(path, read_file(path).substr(0, 512 * 2 * 6));  // three samples
  write_file_atomically(folder / "shards/00002.tar", std::string(10240, '\0'));
  for (const int64_t workers : {0, 3}) {
    CapturedLog log;
    ShardLoader loader(config_with(workers), options_over(folder.path(), 3, 2));
    CHECK(keys_of_epoch(loader).size() == 7);
    CHECK(loader.dropped() ==
          DropCounts{{"shard without end marker", 1}, {"shard without samples", 1}});
    CHECK(log.count("train: used all the same (shard without end marker): 00001.tar ends without "
                    "its end marker: it may have been cut (1 so far)") == 1);
    CHECK(log.count("train: left out (shard without samples): 00002.tar: no member of it makes a "
                    "sample") == 1);
    CHECK(log.lines().size() == 2);
  }
  // A run that goes on behind the last sample of the shard has told it before.
  CapturedLog log;
  ShardLoader loader(config_with(0), options_over(folder.path(), 3, 7));
  const LoaderPosition behind = first_of(loader).position;
  CHECK(loader.dropped() == DropCounts{{"shard without end marker", 1}});
  ShardLoader again(config_with(0), options_over(folder.path(), 3, 7));
  again.start_epoch(0, behind);
  CHECK_FALSE(again.next());
  CHECK(again.dropped() == DropCounts{{"shard without samples", 1}});
}

TEST_CASE("data behind the end of a shard is told, and its samples are used") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 3);
  const std::string one = read_file(folder / "shards/00000.tar");
  write_file_atomically(folder / "shards/00000.tar", one + one + one);
  for (const int64_t workers : {0, 3}) {
    CapturedLog log;
    ShardLoader loader(config_with(workers), options_over(folder.path(), 2, 2));
    CHECK(keys_of_epoch(loader).size() == 6);
    CHECK(loader.dropped() == DropCounts{{drop::kUnreadData, 1}});
    CHECK(log.count("train: used all the same (shard with data that is not read): 00000.tar: data "
                    "behind the end of the tar (" +
                    with_commas(2 * std::ssize(one)) +
                    " bytes, another tar?): not read (1 so far)") == 1);
  }
}

TEST_CASE("counts of what was left out have their plural, and what was used stands apart") {
  CHECK(describe_drops({}) == "nothing was found");
  CHECK(describe_drops({{"broken picture", 3}, {"absent shard", 1}}) ==
        "left out: 1 absent shard, 3 broken pictures");
  CHECK(describe_drops({{"no picture", 1}, {"no caption", 2}, {"damaged shard", 2000}}) ==
        "left out: 2,000 damaged shards, 2 samples without caption, 1 sample without picture");
  CHECK(describe_drops({{"shard without end marker", 2}, {"repeated key or field", 2}}) ==
        "left out: 2 repeated keys or fields; used all the same: 2 shards without end marker");
  CHECK(describe_drops({{"shard without end marker", 1}}) ==
        "used all the same: 1 shard without end marker");
}

TEST_CASE("a look at the first shards ends there, and says what was found") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 4, 2);
  write_file_atomically(folder / "shards/00000.tar", "no tar");
  write_tar(folder / "shards/00001.tar", {{"a.png", "no picture"}});
  LoaderOptions options = options_over(folder.path(), 4, 1);
  options.most_shards = 2;
  const CapturedLog log;
  ShardLoader loader(config_with(0), options);
  CHECK_THROWS_WITH(first_of(loader),
                    Contains("no usable sample in the first 2 of 4 shards") &&
                        Contains("1 broken picture, 1 damaged shard"));
  options.most_shards = 3;
  ShardLoader longer(config_with(0), options);
  CHECK(keys_of_epoch(longer) == Keys{tiny_key(2, 0), tiny_key(2, 1)});
}

TEST_CASE("a split without shards is an error that names it") {
  LoaderOptions options;
  options.split = "test";
  CHECK_THROWS_WITH(ShardLoader(config_with(1), options), Contains("\"test\" has no shards"));
}

TEST_CASE("a rank that refuses a batch tells the others") {
  const TempDir folder;
  for (int64_t shard = 0; shard < 2; ++shard)
    write_tar(folder / fmt::format("shards/{:05d}.tar", shard), tiny_members(shard, 3));
  LoaderOptions options = options_over(folder.path(), 2, 3);
  options.rank = {0, 2};
  std::vector<int64_t> told;
  options.share_sizes = [&](int64_t own) {
    told.push_back(own);
    return std::vector<int64_t>{own, 3};
  };
  options.check_batch = [](const Batch&) { throw DataError("too small"); };
  ShardLoader loader(config_with(0), options);
  CHECK_THROWS_WITH(first_of(loader), "too small");
  CHECK(told == std::vector<int64_t>{LoaderOptions::kFault});
}
