// SPDX-License-Identifier: MIT
#include "data/embeddings/caption_table.h"

#include <catch2/catch.hpp>

#include "data/embeddings/prior_dataset.h"
#include "io/formats/npy.h"
#include "io/formats/tar.h"
#include "io/pictures/image.h"
#include "support/captured_log.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> captions_of(const std::string& path) {
  const CaptionTable table(path, "/data/meta_url");
  std::vector<std::string> captions;
  for (int64_t row = 0; row < table.rows(); ++row) captions.push_back(table.caption(row));
  return captions;
}

std::string fault_of(const std::string& path) {
  return message_of<DataError>([&] { captions_of(path); });
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("captions are the lines of text files, in the order of their paths") {
  const TempDir dir;
  write(dir / "c/b.txt", "third\r\nfourth");
  write(dir / "c/a/z.txt", "first\n\n");
  CHECK(captions_of(dir / "c") == Texts{"first", "", "third", "fourth"});
  CHECK(captions_of(dir / "c/b.txt") == Texts{"third", "fourth"});
}

TEST_CASE("captions are the texts of JSON lines") {
  const TempDir dir;
  write(dir / "c.jsonl", "{\"caption\": \"a \\u00e9\", \"url\": 1}\n{\"caption\": null}\n");
  CHECK(captions_of(dir / "c.jsonl") == Texts{"a \u00e9", ""});
  const auto refused = [&](const std::string& line) {
    write(dir / "bad.jsonl", "{\"caption\": \"a\"}\n" + line + "\n");
    const std::string fault = fault_of(dir / "bad.jsonl");
    CHECK_THAT(fault, Contains("/data/meta_url: ") && Contains("bad.jsonl: line 2: "));
    return fault;
  };
  write(dir / "other.jsonl", "{\"caption\": 3, \"TEXT\": \"b\"}\n");
  CHECK(CaptionTable(dir / "other.jsonl", "/data/meta_url", "TEXT").caption(0) == "b");
  CHECK_THAT(refused("{\"text\": \"a\"}"),
             Contains("expected an object with the key \"caption\", got one without it"));
  CHECK_THAT(refused("[1]"), Contains("got something else"));
  CHECK_THAT(refused("{\"caption\": 3}"), Contains("expected a text as \"caption\", got number"));
  refused("{");
  CHECK_THAT(refused("\n{}"), Contains("expected an object, got an empty line"));
  write(dir / "blank.JSONL", "{\"caption\": \"a\"}\r\n\r\n \n\n");
  CHECK(captions_of(dir / "blank.JSONL") == Texts{"a"});
}

TEST_CASE("captions of tables become text as in shards, and what is assumed is told once") {
  const TempDir dir;
  std::string wide = "\xff\xfe";
  for (const char c : std::string("a cat\r\n\na dog\n")) wide += {c, '\0'};
  write(dir / "wide.TXT", wide);
  CHECK(captions_of(dir / "wide.TXT") == Texts{"a cat", "", "a dog"});
  write(dir / "mark.jsonl", "\xef\xbb\xbf{\"caption\": \" \\u00a0\\u200b\"}\n");
  CHECK(captions_of(dir / "mark.jsonl") == Texts{""});
  write(dir / "old.txt", "caf\xe9\nplain\n\xea\xee\xf2\n");
  const CapturedLog log;
  const CaptionTable old(
      dir / "old.txt", "/data/meta_url", "caption", {.caption_encoding = "windows-1251"});
  CHECK(old.caption(2) == "\u043a\u043e\u0442");
  CHECK(log.count("/data/meta_url: used all the same (caption of an assumed encoding): row 0: its "
                  "caption is not UTF-8, and is read as windows-1251") == 1);
  CHECK(log.lines().size() == 2);
  CHECK_THROWS_WITH(
      CaptionTable(dir / "old.txt", "/data/meta_url", "caption", {.caption_encoding = "latin7000"}),
      Contains("/data/caption_encoding: ICU has no encoding \"latin7000\""));
  write(dir / "s/0.tar", "");
  {
    TarWriter tar(dir / "s/0.tar");
    tar.add("0.txt", "caf\xe9");
    tar.add("1.txt", "one\ntwo");
    tar.add("2.png", "x");
    tar.commit();
  }
  CHECK(captions_of(dir / "s") == Texts{"caf\u00e9", "one\ntwo", ""});
  CHECK(log.count("row 1: its caption has 2 lines, and all are used") == 1);
}

TEST_CASE("captions and pictures are the samples of shards, by row") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "s");
  {
    TarWriter tar(dir / "s/0.tar");
    tar.add("0.png", "p0");
    tar.add("0.txt", "zero");
    tar.add("1.JPG", "p1");  // no caption
    tar.add("2.img_emb.npy", "x");
    tar.add("2.txt", "two");  // no picture
    tar.commit();
    TarWriter other(dir / "s/1.tar");
    other.add("0.txt", "three");
    other.add("0.webp", "p3");
    other.commit();
  }
  CHECK(captions_of(dir / "s") == Texts{"zero", "", "two", "three"});
  const CaptionTable table(dir / "s", "/data/meta_url");
  CHECK(table.has_pictures());
  CHECK(table.picture(0) == "p0");
  CHECK(table.picture(1) == "p1");
  CHECK_FALSE(table.picture(2));
  CHECK(table.picture(3) == "p3");
  write(dir / "cut/0.tar", "no tar");
  CHECK_THAT(fault_of(dir / "cut"), Contains("0.tar: "));
}

TEST_CASE("what holds no captions is told with what would") {
  const TempDir dir;
  CHECK_THAT(fault_of(dir / "absent"), Contains("absent': no such file or folder"));
  std::filesystem::create_directories(dir / "empty");
  CHECK_THAT(fault_of(dir / "empty"), Contains("expected files .txt, .jsonl, .parquet or .tar"));
  write(dir / "none.txt", "");
  CHECK_THAT(fault_of(dir / "none.txt"), Contains("expected captions in"));
  write(dir / "other.csv", "a");
  CHECK_THAT(fault_of(dir / "other.csv"),
             Contains("expected a file .txt, .jsonl, .parquet or .tar"));
  write(dir / "p/0.parquet", "PAR1");
  for (const char* path : {"p", "p/0.parquet"}) {
#ifndef DALLE2_WITH_PARQUET
    CHECK_THAT(
        fault_of(dir / path),
        Contains("got .parquet, which only a build with Arrow reads (libdalle2_parquet.so") &&
            Contains("pandas.read_parquet"));
#else
    CHECK_THAT(fault_of(dir / path), Contains("0.parquet: "));
#endif
  }
  write(dir / "p/0.jsonl", "{\"caption\": \"a\"}\n");  // converted beside it
  CHECK(captions_of(dir / "p") == Texts{"a"});
  write(dir / "p/1.txt", "a\n");
  CHECK_THAT(fault_of(dir / "p"), Contains("of one sort") && Contains(".jsonl and .txt"));
}

TEST_CASE("rows of a prior come with captions, and with pictures where there are no embeddings") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "s");
  std::filesystem::create_directories(dir / "images");
  {
    const Image picture{
        .width = 8, .height = 6, .pixels = std::vector<uint8_t>(size_t{8} * 6 * 3, 255)};
    TarWriter tar(dir / "s/0.tar");
    for (int row = 0; row < 6; ++row) {
      const std::string key = std::to_string(row);
      tar.add(key + ".png", row == 1 ? "broken" : encode_png(picture));
      if (row != 2) tar.add(key + ".txt", "caption " + key);
    }
    tar.commit();
    const std::vector<float> values = {0, 1, 2, 3, 4, NAN};
    write_npy_float32(dir / "images/0.npy", {6, 1}, values.data());
  }
  PriorConfig prior;
  prior.image_embed_dim = 1;
  PriorDataConfig data;
  data.meta_url = dir / "s";
  data.splits = {.train = 0.99, .val = 0, .test = 0.01};
  data.num_data_points = 6;
  const auto read = [&] {
    return PriorDataset(data, prior, 1, ClipPreprocessing{.side = 4})
        .batch("train", 0, 0, 6)
        .value();
  };
  {
    const PriorBatch batch = read();
    CHECK(batch.rows == 5);
    CHECK(batch.captions == Texts{"caption 0", "caption 3", "caption 4"});
    CHECK(batch.size() == 3);
    CHECK(batch.pictures.sizes() == at::IntArrayRef({3, 3, 4, 4}));
    CHECK(batch.pictures.eq(1).all().item<bool>());
    CHECK_FALSE(batch.image_embeds.defined());
    const CapturedLog log;
    DropCounts total, epoch;
    batch.drops.report("train", total, epoch);
    CHECK(epoch == DropCounts{{drop::kBrokenPicture, 1}, {drop::kNoCaption, 1}});
  }
  data.image_url = dir / "images";
  const PriorBatch batch = read();
  CHECK(batch.captions == Texts{"caption 0", "caption 1", "caption 3", "caption 4"});
  CHECK(batch.image_embeds.size(0) == 4);
  CHECK_FALSE(batch.pictures.defined());
  CHECK_FALSE(batch.text_embeds.defined());
  // Uneven pairs, and nothing to make image embeddings of.
  const auto fault = [&] {
    return message_of<DataError>(
        [&] { PriorDataset(data, prior, 1, ClipPreprocessing{.side = 4}); });
  };
  write(dir / "few.txt", "a\nb\n");
  data.meta_url = dir / "few.txt";
  CHECK_THAT(fault(), Contains("/data/meta_url: ") && Contains("has 2 rows and /data/image_url 6"));
  data.image_url.reset();
  CHECK_THAT(fault(), Contains("/data/image_url: expected a folder of image embeddings, as"));
}

}  // namespace dalle2::test
