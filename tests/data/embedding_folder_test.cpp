// SPDX-License-Identifier: MIT
// Embeddings from every place that shards can come from.
#include <catch2/catch.hpp>

#include "data/embeddings/embeddings.h"
#include "data/loader_support.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"
#include "support/tiny_shards.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

SourceOptions quick() {
  SourceOptions options{.allow_pipe = true};
  options.http.stall_seconds = 0.4;
  options.http.attempts = 2;
  return options;
}

/// One row of 3 values, the shard's number.
std::string npy_of(int64_t shard) {
  const std::vector<float> values(3, static_cast<float>(shard));
  return format_npy_float32({1, 3}, values.data());
}

float first_value(const EmbeddingFolder& folder, int64_t shard) {
  std::vector<float> row(3);
  folder.load(shard, quick())->copy_row(0, row.data());
  return row[0];
}

}  // namespace

TEST_CASE("embeddings come from a folder, a template, a page of links and a template of a server") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "emb");
  for (const int shard : {3, 12}) {
    write_file_atomically(
        folder / "emb/img_" + (shard < 10 ? "000" : "00") + std::to_string(shard) + ".npy",
        npy_of(shard));
  }
  LoopbackServer server([&](const HttpRequest& request) {
    if (request.path == "/emb/")
      return http_reply(200, "<a href=\"img_0003.npy\">a</a><a href=\"img_0012.npy\">b</a>");
    if (request.number == 1) return http_reply(503, "");
    const std::string path = folder.path() + request.path;
    return std::filesystem::exists(path) ? ranged_reply(request, read_file(path))
                                         : http_reply(404, "");
  });
  CapturedLog log;
  for (const std::string& url : {folder / "emb",
                                 "file:" + folder / "emb/",
                                 folder / "emb/img_{}.npy",
                                 server.url("/emb"),
                                 server.url("/emb/img_{}.npy"),
                                 "pipe:cat " + folder / "emb/img_{}.npy"}) {
    INFO(url);
    const EmbeddingFolder embeddings(url, "image", 4, quick());
    CHECK(embeddings.has(12));
    CHECK_FALSE(embeddings.has(-1));
    CHECK(first_value(embeddings, 3) == 3);
    CHECK(first_value(embeddings, 12) == 12);
    const bool listed = embeddings.file_count() > 0;
    CHECK(embeddings.has(4) != listed);
    if (!listed) CHECK_THROWS_AS(embeddings.load(4, quick()), DataError);
    if (listed) CHECK(embeddings.describe() == "2 files for shards 3 to 12");
    if (listed) CHECK(embeddings.row_shape() == std::vector<int64_t>{3});
  }
}

TEST_CASE("places without embeddings are told with their key") {
  LoopbackServer server([](const HttpRequest& request) {
    return request.path == "/empty/" ? http_reply(200, "nothing") : http_reply(403, "");
  });
  CHECK_THROWS_WITH(EmbeddingFolder(server.url("/empty"), "text", 6, quick()),
                    Contains("/data/text_embeddings_url: the folder \"" + server.url("/empty")) &&
                        Contains("no embedding files"));
  CHECK_THROWS_AS(EmbeddingFolder(server.url("/refused"), "text", 6, quick()), HttpStatusError);
  CHECK_THROWS_WITH(EmbeddingFolder("nowhere", "image"),
                    Contains("/data/img_embeddings_url: the folder \"nowhere\" cannot be read"));
  CHECK_THROWS_WITH(EmbeddingFolder("nowhere/{}{}.npy", "image"), Contains("second placeholder"));
  CHECK_THROWS_AS(EmbeddingFolder("gs://bucket/emb", "image"), ConfigError);
}

TEST_CASE("the width is that of the first file that can be read") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "e");
  write_file_atomically(folder / "e/img_0.npy", "");
  write_file_atomically(folder / "e/img_1.npy", "not an array");
  const std::vector<float> values(20, 1.0F);
  write_npy_float32(folder / "e/img_2.npy", {2, 2, 5}, values.data());
  write_npy_float32(folder / "e/img_3.npy", {2, 5}, values.data());
  write_npy_float32(folder / "e/img_4.npy", {2, 3}, values.data());
  const EmbeddingFolder any(folder / "e", "image");
  CHECK(any.row_shape() == std::vector<int64_t>{5});
  CHECK(any.shape_file() == folder / "e/img_3.npy");
  const EmbeddingFolder asked(folder / "e", "image", 6, {}, "", 3);
  CHECK(asked.row_shape() == std::vector<int64_t>{3});
  CHECK(asked.shape_file() == folder / "e/img_4.npy");
  CHECK(EmbeddingFolder(folder / "e", "image", 6, {}, "", 768).row_shape() ==
        std::vector<int64_t>{5});
  std::filesystem::remove(folder / "e/img_3.npy");
  std::filesystem::remove(folder / "e/img_4.npy");
  CHECK_THROWS_WITH(EmbeddingFolder(folder / "e", "image"),
                    Contains("/data/img_embeddings_url: none of the 3 embedding files in ") &&
                        Contains("the first: ") && Contains("img_0.npy: not a NumPy .npy file") &&
                        Contains("Make the embeddings again"));
}

TEST_CASE("files that a server refuses cost their shards, and soon the folder") {
  int refused = 0;
  LoopbackServer server([&](const HttpRequest& request) {
    if (request.path == "/e/") {
      std::string page;
      for (int i = 0; i < 9; ++i) page += "<a href=\"img_" + std::to_string(i) + ".npy\">a</a>";
      return http_reply(200, page);
    }
    if (request.path < "/e/img_" + std::to_string(refused)) return http_reply(403, "");
    return ranged_reply(request, npy_of(7));
  });
  refused = 2;
  CHECK(EmbeddingFolder(server.url("/e"), "image", 6, quick()).row_shape() ==
        std::vector<int64_t>{3});
  refused = 9;
  CHECK_THROWS_AS(EmbeddingFolder(server.url("/e"), "image", 6, quick()), HttpStatusError);
}

TEST_CASE("rows of images have one axis, rows of texts two") {
  const TempDir folder;
  const std::vector<float> values(20, 1.0F);
  std::filesystem::create_directories(folder / "i");
  std::filesystem::create_directories(folder / "t");
  write_npy_float32(folder / "i/img_0.npy", {2, 2, 5}, values.data());
  write_npy_float32(folder / "t/text_0.npy", {4, 5}, values.data());
  CHECK_THROWS_WITH(EmbeddingFolder(folder / "i", "image"),
                    Contains("expected image embeddings of shape [rows, width], got rows of shape "
                             "[2, 5]") &&
                        Contains("text encodings"));
  CHECK_THROWS_WITH(EmbeddingFolder(folder / "t", "text"),
                    Contains("expected text encodings of shape [rows, length, width]") &&
                        Contains("got rows of shape [5]") && Contains("last hidden states"));
  CHECK_THROWS_WITH(parse_embedding(format_npy_float32({5}, values.data()), "text", "a.npy"),
                    Contains("a.npy: expected text encodings of shape [length, width]"));
  CHECK(
      parse_embedding(format_npy_float32({1, 4, 5}, values.data()), "text", "").rows->row_shape() ==
      std::vector<int64_t>{4, 5});
}

TEST_CASE("the embeddings of a store are listed") {
  LoopbackServer server([](const HttpRequest& request) {
    if (request.path.find("list-type=2") != std::string::npos)
      return http_reply(200, "<Contents><Key>e/img_7.npy</Key></Contents>");
    return ranged_reply(request, npy_of(7));
  });
  setenv("AWS_ENDPOINT_URL_S3", server.url("").c_str(), 1);
  const EmbeddingFolder embeddings("s3://bucket/e", "image", 6, quick());
  CHECK(embeddings.file_count() == 1);
  CHECK(embeddings.url(7) == "s3://bucket/e/img_7.npy");
  CHECK(first_value(embeddings, 7) == 7);
  const EmbeddingFolder numbered("s3://bucket/e/img_{}.npy", "image", 1, quick());
  CHECK(numbered.file_count() == 1);
  unsetenv("AWS_ENDPOINT_URL_S3");
}

// Folders as img2dataset and clip-retrieval leave them.
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
  for (const char* kind : {"img_emb", "text_emb", "metadata"})
    std::filesystem::create_directories(folder + "/" + kind);
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
  const Batch batch = first_of(loader);
  REQUIRE(batch.size() == 15);
  for (int64_t i = 0; i < batch.size(); ++i) {
    const std::string& key = batch.keys[static_cast<size_t>(i)];
    CHECK(batch.captions[static_cast<size_t>(i)] == "of " + key);
    // The embedding tells its shard and row, which is the key's and not the place in the tar.
    CHECK(batch.image_embeds[i][0].item<float>() == std::stof(key.substr(0, 5)) + 1);
    CHECK(batch.image_embeds[i][1].item<float>() == std::stof(key.substr(5)) + 1);
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
