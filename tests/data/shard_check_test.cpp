// SPDX-License-Identifier: MIT
#include "data/shards/shard_check.h"

#include <catch2/catch.hpp>

#include "io/files/atomic_file.h"
#include "support/broken_listing.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

std::string text_of(const CheckReport& report) {
  std::string text;
  for (const std::string& line : describe_check(report)) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("the check names what is wrong with each shard") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 6, 4);
  Members members = tiny_members(1, 4);
  members[0].second = "no picture";
  members[2].first = tiny_key(1, 1) + ".gif";
  members.erase(members.begin() + 7);                                // the caption of 1.3
  members.emplace_back(tiny_key(0, 2) + ".png", members[4].second);  // a key of shard 0, no caption
  members.emplace_back(tiny_key(0, 2) + ".png", "again");
  write_tar(folder / "shards/00001.tar", members);
  std::filesystem::remove(folder / "img_emb/img_emb_00002.npy");
  write_tiny_embeddings(folder / "img_emb/img_emb_00003.npy", 3, 4, 5);
  const std::vector<float> values = {1, 1, 1, 0, 0, 0, NAN, 1, 1};
  write_npy_float32(folder / "img_emb/img_emb_00004.npy", {3, 3}, values.data());
  const std::string whole = read_file(folder / "shards/00005.tar");
  write_file_atomically(folder / "shards/00005.tar", whole.substr(0, 1024 * 4 + 700));
  write_tiny_embeddings(folder / "img_emb/img_emb_00099.npy", 99, 4);

  CheckOptions options;
  options.urls = shards_in_folder(folder / "shards");
  options.img_embeddings_url = folder / "img_emb";
  const CheckReport report = check_shards(options);
  REQUIRE(report.shards.size() == 6);
  CHECK(report.shards[0].usable == 4);
  CHECK(report.shards[0].short_sides.begin()->first == 4);
  const ShardCheck& second = report.shards[1];
  CHECK(second.samples == 5);
  CHECK(second.drops.count(drop::kBrokenPicture) == 1);
  CHECK(second.drops.count(drop::kNoPicture) == 1);
  CHECK(second.no_caption == 2);
  CHECK(second.drops.count(drop::kRepeatedKey) == 1);
  CHECK(second.drops.count(drop::kRepeatedMember) == 1);
  CHECK(second.usable == 3);
  CHECK_THAT(report.shards[2].drops.first(drop::kShardWithoutEmbeddings),
             Contains("00002.tar: no file for it in "));
  CHECK(report.shards[2].usable == 0);
  CHECK(report.shards[3].drops.count(drop::kWrongEmbeddingShape) == 1);
  CHECK(report.shards[3].usable == 0);
  CHECK(report.shards[4].drops.count(drop::kZeroImageEmbedding) == 1);
  CHECK(report.shards[4].drops.count(drop::kEmbeddingNotFinite) == 1);
  CHECK(report.shards[4].drops.count(drop::kNoImageEmbedding) == 1);
  CHECK(report.shards[4].usable == 1);
  CHECK(report.shards[5].is_lost);
  CHECK(report.shards[5].usable == 2);
  CHECK(report.image_row_shape == std::vector<int64_t>{3});
  CHECK(report.embedding_files == 6);
  CHECK(report.unused_files == 1);
  CHECK(report.usable == 10);

  options.threads = 1;
  CHECK(describe_check(check_shards(options)) == describe_check(report));
  const std::string text = text_of(report);
  CHECK_THAT(
      text,
      Contains("00001.tar: 5 samples, 3 usable: left out: 1 broken picture, 1 sample without "
               "picture, 1 repeated key or field; used all the same: 1 key of an earlier "
               "sample, 1 key with another shard's number, 1 row of embeddings that two samples "
               "have\n"));
  CHECK_THAT(text, Contains("\n2 samples have no caption, which only a CLIP needs\n"));
  CHECK_THAT(text, Contains("    000040001: row 1 is all zero\n"));
  CHECK_THAT(text, Contains("00000.tar: 4 samples, all usable\n"));
  CHECK_THAT(text,
             Contains("in all: 6 shards, 1 of them without fault\n") &&
                 Contains("\nleft out: 1 broken picture, 1 damaged shard, ") &&
                 Contains(", 1 shard without embeddings"));
  CHECK_THAT(text, Contains("\nimage embeddings of shape [3]\n"));
  CHECK_THAT(text, Contains("1 of 6 embedding files is for none of these shards"));
}

TEST_CASE("rows that were counted in another way than the keys are told") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 3, 4);
  // Shard 1 was packed anew: two samples are gone, and two have the keys of shard 0.
  Members members = tiny_members(1, 2);
  for (const auto& member : tiny_members(0, 2)) members.push_back(member);
  write_tar(folder / "shards/00001.tar", members);
  std::filesystem::remove(folder / "shards/00000.tar");
  CheckOptions options;
  options.urls = shards_in_folder(folder / "shards");
  options.img_embeddings_url = folder / "img_emb";
  const CheckReport report = check_shards(options);
  CHECK(report.shards[0].drops.count(drop::kForeignKey) == 2);
  CHECK(report.shards[0].drops.count(drop::kSharedRow) == 2);
  CHECK(report.shards[0].drops.count(drop::kIdleRow) == 2);
  CHECK(report.shards[1].drops.empty());
  CHECK(report.misaligned == 4);  // all of the shard: it has rows behind its last sample's
  const std::string text = text_of(report);
  CHECK_THAT(
      text,
      Contains("00001.tar: 4 samples, all usable: used all the same: 2 keys with another shard's "
               "number, 2 rows of embeddings that two samples have, 2 rows of embeddings without a "
               "sample\n"));
  CHECK_THAT(text, Contains("000000001: row 1 is another sample's, too"));
  CHECK_THAT(text,
             Contains("some rows of embeddings do not belong to the samples") &&
                 Contains("--index-width"));
}

TEST_CASE("embeddings inside the shards are checked, too") {
  const TempDir folder;
  Members members = tiny_members(0, 3);
  const std::vector<float> values = {1, 2, 3, 4};
  members.insert(members.begin() + 2,
                 {tiny_key(0, 0) + ".img_emb.npy", format_npy_float32({2}, values.data())});
  members.insert(members.begin() + 5, {tiny_key(0, 1) + ".img_emb.npy", "no array"});
  write_tar(folder / "00000.tar", members);
  const CheckReport report =
      check_shards({.urls = {folder / "00000.tar"}, .embeddings_in_tar = true});
  CHECK(report.shards[0].drops.count(drop::kNoImageEmbedding) == 2);
  CHECK(report.usable == 1);
  CHECK(report.image_row_shape == std::vector<int64_t>{2});

  const Members others = {tiny_members(1, 1)[0],
                          {tiny_key(1, 0) + ".npy", format_npy_float32({4}, values.data())}};
  write_tar(folder / "00001.tar", others);
  const Members more = {tiny_members(2, 1)[0],
                        {tiny_key(2, 0) + ".npy", format_npy_float32({2}, values.data())}};
  write_tar(folder / "00002.tar", more);
  const CheckReport all =
      check_shards({.urls = {folder / "00001.tar", folder / "00000.tar", folder / "00002.tar"},
                    .embeddings_in_tar = true});
  CHECK(all.usable == 2);
  CHECK_THAT(all.shards[0].drops.first(drop::kWrongEmbeddingShape),
             Contains("embeddings of shape [4], those of most shards have [2]"));
}

TEST_CASE("captions without text, dotted keys and shards without samples are told") {
  const TempDir folder;
  Members members = tiny_members(0, 6);
  members[1].second = "caf\xe9";
  members[3].second = " \n";
  members[5].second = "\x81";
  members[7].second = "one\ntwo";
  members[9].second = "\xef\xbb\xbf";
  members.emplace_back("a\x1b[2J.txt", "no picture");
  members.emplace_back("LICENSE", "no extension");
  for (const char* name : {"photo.v0.png", "photo.v1.png"})
    members.emplace_back(name, members[0].second);
  write_tar(folder / "00000.tar", members);
  write_file_atomically(folder / "00000.tar", read_file(folder / "00000.tar") + "behind");
  write_tar(folder / "00001.tar", {});
  const CheckReport report =
      check_shards({.urls = {folder / "00000.tar", folder / "00001.tar", folder / "00002.tar"}});
  CHECK(report.shards[0].no_caption == 3);
  CHECK(report.usable == 6);
  const CapturedLog log;
  const std::string text = text_of(report);
  CHECK_THAT(
      text,
      Contains("8 samples, 6 usable: left out: 2 samples without picture; used all the same: 1 "
               "shard with data that is not read\n") &&
          Contains("    data behind the end of the tar (6 bytes, another tar?): not read\n") &&
          Contains("a\\x1b[2J: no field jpg") &&
          Contains(
              "photo: no field jpg, jpeg, png, webp or jfif; it has the fields v0.png to v1.png") &&
          Contains("\n3 samples have no caption, which only a CLIP needs\n") &&
          Contains("\n1 member of the tars is not read: names without extension, or no files\n") &&
          Contains("used all the same: 1 caption of an assumed encoding, 1 caption of several "
                   "lines, 2 pictures whose captions have no text, 1 unreadable caption\n"));
  CHECK(log.count(tiny_key(0, 1) + ": its caption is empty") == 1);
  CHECK_THAT(text,
             Contains("00001.tar: 0 samples: left out: 1 shard without samples\n    the tar holds "
                      "none\n") &&
                 Contains("00002.tar: 0 samples: left out: 1 absent shard\n") &&
                 !Contains("all usable"));
}

TEST_CASE("an embedding folder is named as the option that gave it") {
  const TempDir folder;
  CHECK_THROWS_WITH(check_shards({.urls = {}, .text_embeddings_url = folder.path()}),
                    Contains("--text-embeddings: the folder"));
}

TEST_CASE("a tar that may have been cut is told and used; one of zeros has no samples") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 4);
  const std::string whole = read_file(folder / "shards/00000.tar");
  write_file_atomically(folder / "shards/00000.tar", whole.substr(0, 512 * 2 * 6));
  write_file_atomically(folder / "shards/00002.tar", std::string(10240, '\0'));
  std::filesystem::create_directories(folder / "shards/00003.tar");
  const CheckReport report = check_shards({.urls = shards_in_folder(folder / "shards")});
  CHECK_FALSE(report.shards[0].is_lost);
  CHECK(report.shards[0].usable == 3);
  CHECK(report.shards[1].drops.empty());
  CHECK(report.shards[2].is_lost);
  CHECK(report.lost == 2);
  const std::string text = text_of(report);
  CHECK_THAT(
      text,
      Contains("00000.tar: 3 samples, all usable: used all the same: 1 shard without end marker\n"
               "    without its end marker: it may have been cut\n") &&
          Contains("00003.tar: is a folder, a file is expected") &&
          Contains("4 shards, 1 of them without fault\n") &&
          Contains("\nleft out: 1 damaged shard, 1 shard without samples; used all the same: 1 "
                   "shard without end marker\n"));
}

TEST_CASE("a list of faults that goes on says how far") {
  const TempDir folder;
  Members members;
  for (int64_t row = 0; row < 7; ++row) members.emplace_back(tiny_key(0, row) + ".png", "broken");
  write_tar(folder / "00000.tar", members);
  const std::vector<std::string> lines =
      describe_check(check_shards({.urls = {folder / "00000.tar"}}));
  CHECK(std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
          return line.starts_with("    ");
        }) == 4);
  CHECK(std::count(lines.begin(), lines.end(), "    and 4 more") == 1);
}

TEST_CASE("embeddings of more or fewer pictures than a shard has are another data set's") {
  const TempDir folder;
  write_tiny_shards(folder.path(), 2, 4);
  write_tiny_embeddings(folder / "img_emb/img_emb_00000.npy", 0, 9);
  write_tiny_embeddings(folder / "img_emb/img_emb_00001.npy", 1, 3);
  CheckOptions options;
  options.urls = shards_in_folder(folder / "shards");
  options.img_embeddings_url = folder / "img_emb";
  const CheckReport report = check_shards(options);
  CHECK(report.misaligned == 4);
  CHECK(report.shards[1].usable == 3);
  const std::string text = text_of(report);
  CHECK_THAT(text,
             Contains("4 samples, all usable: used all the same: 5 rows of embeddings without a "
                      "sample\n    row 4 has no sample\n") &&
                 Contains("000010003: no row 3 among its shard's 3 rows of image embeddings") &&
                 Contains("some rows of embeddings do not belong to the samples"));
  // Samples that were taken out of a shard leave gaps: the others' rows are still theirs.
  Members members = tiny_members(0, 4);
  members.erase(members.begin() + 2, members.begin() + 4);
  write_tar(folder / "shards/00000.tar", members);
  write_tiny_embeddings(folder / "img_emb/img_emb_00000.npy", 0, 4);
  CHECK(check_shards(options).misaligned == 0);
  // So do a few at the end.
  write_tar(folder / "shards/00000.tar", tiny_members(0, 19));
  write_tiny_embeddings(folder / "img_emb/img_emb_00000.npy", 0, 20);
  CHECK(check_shards(options).misaligned == 0);
}

TEST_CASE("absent shards and empty folders are told") {
  const TempDir folder;
  const CheckReport report = check_shards({.urls = {folder / "00000.tar"}});
  CHECK_THAT(report.shards[0].drops.first(drop::kAbsentShard), Contains("No such file"));
  CHECK_THROWS_WITH(shards_in_folder(folder.path()), Contains("no .tar file"));
  CHECK_THROWS_WITH(shards_in_folder(folder / "absent"), Contains("cannot be read"));
  std::ofstream(folder / "0.tar") << "x";
  std::ofstream(folder / "1.tar") << "x";
  CHECK(shards_in_folder(folder.path()).size() == 2);
  const BrokenListing broken;
  CHECK_THROWS_WITH(shards_in_folder(folder.path()),
                    Contains("the folder cannot be read: Input/output error"));
}
