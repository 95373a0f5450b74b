// SPDX-License-Identifier: MIT
// Folders as img2dataset and clip-retrieval leave them.

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "data/embeddings/embeddings.h"
#include "data/loader_support.h"
#include "data/shards/shard_check.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// FOLDER/00000.tar ... with jpg, json and txt a sample; what could not be fetched is in no tar.
/// Beside them the tables of img2dataset.
void write_img2dataset(const std::string& folder, int64_t shards, int64_t rows) {
  std::filesystem::create_directories(folder);
  for (int64_t shard = 0; shard < shards; ++shard) {
    Members members;
    for (int64_t row = 0; row < rows; ++row) {
      if (row % 3 == 1) continue;  // failed_to_download
      const std::string key = tiny_key(shard, row);
      members.emplace_back(key + ".jpg", encode_jpeg(plain_picture(8, 8, 200, 100, 50), 95));
      members.emplace_back(key + ".json",
                           "{\"caption\": \"of " + key + "\", \"status\": \"success\"}");
      members.emplace_back(key + ".txt", "of " + key);
    }
    const std::string name = fmt::format("{}/{:05d}", folder, shard);
    write_tar(name + ".tar", members);
    write_file_atomically(name + "_stats.json", "{\"count\": 7, \"successes\": 5}");
    write_file_atomically(name + ".parquet", "PAR1 no table that we read PAR1");
  }
}

/// FOLDER/img_emb/img_emb_0.npy ..., text_emb, metadata, and files that others have put there.
void write_clip_retrieval(const std::string& folder, int64_t files, int64_t rows) {
  for (const char* kind : {"img_emb", "text_emb", "metadata"}) {
    std::filesystem::create_directories(folder + "/" + kind);
  }
  for (int64_t file = 0; file < files; ++file) {
    for (const char* kind : {"img_emb", "text_emb"}) {
      write_tiny_embeddings(
          fmt::format("{}/{}/{}_{:04d}.npy", folder, kind, kind, file), file, rows);
    }
    write_file_atomically(fmt::format("{}/metadata/metadata_{:04d}.parquet", folder, file), "PAR1");
  }
  write_file_atomically(folder + "/img_emb/README", "made by clip-retrieval");
  write_file_atomically(folder + "/img_emb/img_emb_0000_stats.json", "{}");
  write_file_atomically(folder + "/img_emb/.img_emb_0000.npy.swp", "of an editor");
  write_file_atomically(folder + "/img_emb/mean.npy", "of somebody else");
  std::filesystem::create_directories(folder + "/img_emb/old_0007.npy");
}

}  // namespace

TEST_CASE("a folder of img2dataset is read as it comes, with the embeddings of clip-retrieval") {
  const TempDir folder;
  write_img2dataset(folder / "shards", 3, 7);
  write_clip_retrieval(folder / "embeddings", 3, 7);

  ShardDataConfig config = config_with(1);
  config.img_embeddings_url = folder / "embeddings/img_emb";
  LoaderOptions options = options_over(folder.path(), 3, 64);
  options.need_image_embeds = true;
  options.image_embed_dim = 3;
  CapturedLog log;
  ShardLoader loader(config, options);
  CHECK(log.count("mean.npy has no shard number") == 1);
  loader.start_epoch(0);
  const auto batch = loader.next();
  REQUIRE(batch);
  REQUIRE(batch->size() == 15);
  for (int64_t i = 0; i < batch->size(); ++i) {
    const std::string& key = batch->keys[static_cast<size_t>(i)];
    CHECK(batch->captions[static_cast<size_t>(i)] == "of " + key);
    // The embedding tells its shard and row, which is the key's and not the place in the tar.
    CHECK(batch->image_embeds[i][0].item<float>() == std::stof(key.substr(0, 5)) + 1);
    CHECK(batch->image_embeds[i][1].item<float>() == std::stof(key.substr(5)) + 1);
  }
  CHECK(loader.dropped().empty());
}

TEST_CASE("a file of embeddings may be named by the number of its shard alone") {
  const TempDir folder;
  write_tiny_embeddings(folder / "000009.npy", 9, 4);
  write_tiny_embeddings(folder / "000010.npy", 10, 5);
  const EmbeddingFolder found(folder.path(), "image");
  CHECK(found.file_count() == 2);
  CHECK(found.load(10)->rows() == 5);
  CHECK_FALSE(found.has(0));
}

TEST_CASE("the check of a folder of img2dataset looks at its tars alone") {
  const TempDir folder;
  write_img2dataset(folder / "images", 2, 7);
  const CheckReport report = check_shards({.urls = shards_in_folder(folder / "images")});
  CHECK(report.shards.size() == 2);
  CHECK(report.samples() == 10);
  CHECK(report.usable() == 10);
}

TEST_CASE("the folder above the embeddings is told from the folder of them") {
  const TempDir folder;
  write_clip_retrieval(folder / "embeddings", 1, 2);
  CHECK_THROWS_WITH(EmbeddingFolder(folder / "embeddings", "image"),
                    Contains("no embedding files named <prefix>_<shard>.npy or <shard>.npy") &&
                        Contains("embeddings/img_emb"));
  // One vector a caption, as clip-retrieval writes them, is nothing a decoder takes.
  CHECK_THROWS_WITH(EmbeddingFolder(folder / "embeddings/text_emb", "text"),
                    Contains("expected text encodings of shape [rows, length, width]"));
}

TEST_CASE("embeddings of any float, order and number of axes are read alike") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "e");
  // What numpy.save writes for np.asfortranarray([[1, 2, 3], [4, 5, 6]], "<f2").
  std::string file("\x93NUMPY\x03\0", 8);
  std::string header = "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }";
  header.append(127 - 12 - header.size(), ' ');
  header += '\n';
  file += std::string(1, static_cast<char>(header.size())) + std::string(3, '\0') + header;
  for (const int bits : {0x3c00, 0x4400, 0x4000, 0x4500, 0x4200, 0x4600}) {
    file += static_cast<char>(bits & 0xff);
    file += static_cast<char>(bits >> 8);
  }
  write_file_atomically(folder / "e/img_emb_0.npy", file);
  const EmbeddingFolder embeddings(folder / "e", "image");
  CHECK(embeddings.row_shape() == std::vector<int64_t>{3});
  std::vector<float> row(3);
  embeddings.load(0)->copy_row(1, row.data());
  CHECK(row == std::vector<float>{4, 5, 6});
}
