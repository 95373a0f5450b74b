// SPDX-License-Identifier: MIT
// Captions in Parquet files, written here by Arrow. Only built where Arrow is.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>
#include <catch2/catch.hpp>

#include "data/embeddings/caption_table.h"
#include "data/embeddings/prior_dataset.h"
#include "io/files/atomic_file.h"
#include "io/formats/npy.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;
using Texts = std::vector<std::string>;
using Column = std::pair<std::string, std::shared_ptr<arrow::Array>>;

/// @param texts none: null
template <class Builder>
std::shared_ptr<arrow::Array> texts_as(const std::vector<std::optional<std::string>>& texts) {
  Builder builder;
  for (const auto& text : texts)
    PARQUET_THROW_NOT_OK(text ? builder.Append(*text) : builder.AppendNull());
  return builder.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Array> numbers(int64_t count) {
  arrow::Int64Builder builder;
  for (int64_t i = 0; i < count; ++i) PARQUET_THROW_NOT_OK(builder.Append(i));
  return builder.Finish().ValueOrDie();
}

/// Two columns in one: what comes behind has a higher number among the leaves.
std::shared_ptr<arrow::Array> nested(int64_t count) {
  return arrow::StructArray::Make(arrow::ArrayVector{numbers(count), numbers(count)},
                                  std::vector<std::string>{"a", "b"})
      .ValueOrDie();
}

void write_parquet(const std::string& path, const std::vector<Column>& columns, int64_t group = 2) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  const auto sink = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto properties =
      parquet::WriterProperties::Builder().compression(parquet::Compression::ZSTD)->build();
  const auto with_types = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  PARQUET_THROW_NOT_OK(parquet::arrow::WriteTable(
      *table, arrow::default_memory_pool(), sink, group, properties, with_types));
  PARQUET_THROW_NOT_OK(sink->Close());
}

Texts captions_of(const std::string& path, const std::string& column = "caption") {
  const CaptionTable table(path, "/data/meta_url", column);
  Texts captions;
  for (int64_t row = 0; row < table.rows(); ++row) captions.push_back(table.caption(row));
  return captions;
}

std::string fault_of(const std::string& path, const std::string& column = "caption") {
  return message_of<DataError>([&] { captions_of(path, column); });
}

}  // namespace

TEST_CASE("captions are the texts of a column, over row groups and files") {
  const TempDir dir;
  write_parquet(
      dir / "m/metadata_0.parquet",
      {{"meta", nested(5)},
       {"caption", texts_as<arrow::StringBuilder>({"a \u00e9", std::nullopt, "", "d", "\xff"})},
       {"alt", texts_as<arrow::LargeStringBuilder>({"1", "2", "3", "4", "5"})}});
  write_parquet(dir / "m/metadata_1.parquet",
                {{"caption", texts_as<arrow::LargeStringBuilder>({"f"})},
                 {"alt", texts_as<arrow::BinaryBuilder>({"6"})}});
  CHECK(captions_of(dir / "m") == Texts{"a \u00e9", "", "", "d", "", "f"});
  CHECK(captions_of(dir / "m", "alt") == Texts{"1", "2", "3", "4", "5", "6"});
  CHECK(captions_of(dir / "m/metadata_1.parquet") == Texts{"f"});
  CHECK_FALSE(CaptionTable(dir / "m", "/data/meta_url").has_pictures());
}

TEST_CASE("texts may be stored as categories, as views, or be absent everywhere") {
  const TempDir dir;
  write_parquet(
      dir / "d.parquet",
      {{"caption",
        texts_as<arrow::StringDictionaryBuilder>({"red", "blue", std::nullopt, "red", "green"})}});
  CHECK(captions_of(dir / "d.parquet") == Texts{"red", "blue", "", "red", "green"});
  write_parquet(dir / "v.parquet",
                {{"caption", texts_as<arrow::StringViewBuilder>({"one", std::nullopt})}});
  CHECK(captions_of(dir / "v.parquet") == Texts{"one", ""});
  write_parquet(dir / "n.parquet", {{"caption", std::make_shared<arrow::NullArray>(3)}});
  CHECK(captions_of(dir / "n.parquet") == Texts{"", "", ""});
}

TEST_CASE("a column that is absent or holds no texts is an error") {
  const TempDir dir;
  write_parquet(dir / "a.parquet",
                {{"url", texts_as<arrow::StringBuilder>({"u"})},
                 {"TEXT", texts_as<arrow::StringBuilder>({"t"})},
                 {"key", numbers(1)},
                 {"meta", nested(1)}});
  const std::string fault = fault_of(dir / "a.parquet");
  CHECK_THAT(fault, Contains("/data/meta_url: ") && Contains("a.parquet: expected one column"));
  CHECK_THAT(fault, Contains("\"caption\", got url, TEXT, key, meta"));
  CHECK_THAT(fault, Contains("/data/caption_key names"));
  CHECK(captions_of(dir / "a.parquet", "TEXT") == Texts{"t"});
  CHECK_THAT(fault_of(dir / "a.parquet", "key"),
             Contains("expected texts in the column \"key\", got int64"));
  CHECK_THAT(fault_of(dir / "a.parquet", "meta"),
             Contains("expected texts in the column \"meta\", got struct"));
}

TEST_CASE("a broken Parquet file is an error, wherever it breaks off") {
  const TempDir dir;
  std::vector<std::optional<std::string>> texts(2000, "a text");
  for (size_t i = 0; i < texts.size(); ++i) *texts[i] += std::to_string(i * i);
  write_parquet(dir / "whole.parquet", {{"caption", texts_as<arrow::StringBuilder>(texts)}}, 500);
  const std::string whole = read_file(dir / "whole.parquet");
  REQUIRE(captions_of(dir / "whole.parquet").size() == 2000);
  for (const size_t size : {size_t{0}, size_t{4}, whole.size() / 2, whole.size() - 1}) {
    write_file_atomically(dir / "cut.parquet", whole.substr(0, size));
    CHECK_THAT(fault_of(dir / "cut.parquet"),
               Contains("/data/meta_url: ") && Contains("cut.parquet: "));
  }
  for (size_t at = 8; at < whole.size() - 8; at += 97) {  // damage anywhere never ends the program
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    write_file_atomically(dir / "damaged.parquet", damaged);
    fault_of(dir / "damaged.parquet");
  }
}

TEST_CASE("captions of another number of rows than the embeddings are refused") {
  const TempDir dir;
  write_parquet(dir / "c.parquet", {{"caption", texts_as<arrow::StringBuilder>({"a", "b", "c"})}});
  const std::vector<float> values(8);
  std::filesystem::create_directories(dir / "images");
  write_npy_float32(dir / "images/0.npy", {4, 2}, values.data());
  PriorConfig prior;
  prior.image_embed_dim = 2;
  PriorDataConfig data;
  data.image_url = dir / "images";
  data.meta_url = dir / "c.parquet";
  data.splits = {.train = 0.9, .val = 0, .test = 0.1};
  CHECK_THROWS_WITH(PriorDataset(data, prior, 1, ClipPreprocessing{.side = 4}),
                    Contains("c.parquet' has 3 rows and /data/image_url 4"));
  write_parquet(dir / "c.parquet",
                {{"caption", texts_as<arrow::StringBuilder>({"a", std::nullopt, "c", "d"})}});
  const auto batch =
      PriorDataset(data, prior, 1, ClipPreprocessing{.side = 4}).batch("train", 0, 0, 3);
  REQUIRE(batch);
  CHECK(batch->captions == Texts{"a", "c"});
}

}  // namespace dalle2::test
