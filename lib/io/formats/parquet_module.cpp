// SPDX-License-Identifier: MIT
// The whole of libdalle2_parquet.so, and the only file that sees Arrow.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <algorithm>

#include "io/formats/parquet.h"

namespace dalle2 {
namespace {

template <class Values>
void append_values(const arrow::Array& array, std::vector<std::string>& texts) {
  const auto& values = static_cast<const Values&>(array);
  for (int64_t i = 0; i < values.length(); ++i)
    texts.emplace_back(values.IsNull(i) ? std::string_view() : values.GetView(i));
}

bool append(const arrow::Array& array, std::vector<std::string>& texts);

/// As pandas writes categories: numbers of texts.
bool append_dictionary(const arrow::Array& array, std::vector<std::string>& texts) {
  const auto& numbers = static_cast<const arrow::DictionaryArray&>(array);
  std::vector<std::string> words;
  if (!append(*numbers.dictionary(), words)) return false;
  for (int64_t i = 0; i < numbers.length(); ++i) {
    texts.push_back(numbers.IsNull(i) ? ""
                                      : words.at(static_cast<size_t>(numbers.GetValueIndex(i))));
  }
  return true;
}

/// @return false for other types than texts
bool append(const arrow::Array& array, std::vector<std::string>& texts) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      append_values<arrow::BinaryArray>(array, texts);
      return true;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      append_values<arrow::LargeBinaryArray>(array, texts);
      return true;
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      append_values<arrow::BinaryViewArray>(array, texts);
      return true;
    case arrow::Type::DICTIONARY:
      return append_dictionary(array, texts);
    case arrow::Type::NA:
      texts.resize(texts.size() + static_cast<size_t>(array.length()));
      return true;
    default:
      return false;
  }
}

std::string names_of(const arrow::Schema& schema) {
  constexpr int kMostNames = 12;
  std::string names;
  for (int i = 0; i < std::min(schema.num_fields(), kMostNames); ++i)
    names += (i == 0 ? "" : ", ") + schema.field(i)->name();
  return schema.num_fields() > kMostNames ? names + ", ..." : names;
}

arrow::Result<std::string> read_texts(const std::string& path,
                                      const std::string& column,
                                      std::vector<std::string>& texts) {
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.OpenFile(path));
  ARROW_ASSIGN_OR_RAISE(const auto reader, builder.Build());
  reader->set_use_threads(false);
  std::shared_ptr<arrow::Schema> schema;
  ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
  const int field = schema->GetFieldIndex(column);
  if (field < 0) return "expected one column \"" + column + "\", got " + names_of(*schema);
  // A column of its own only if nothing is nested in it.
  const int leaf = reader->manifest().schema_fields.at(static_cast<size_t>(field)).column_index;
  const std::string type = schema->field(field)->type()->ToString();
  const std::string not_texts = "expected texts in the column \"" + column + "\", got " + type;
  if (leaf < 0) return not_texts;
  std::vector<int> groups(static_cast<size_t>(reader->num_row_groups()));
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups, {leaf}));
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (!batch) return "";
    if (!append(*batch->column(0), texts)) return not_texts;
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ReadParquetTexts dalle2_read_parquet_texts;

void dalle2_read_parquet_texts(const std::string& path,
                               const std::string& column,
                               std::vector<std::string>& texts,
                               std::string& fault) {
  try {
    const arrow::Result<std::string> result = read_texts(path, column, texts);
    fault = result.ok() ? *result : result.status().message();
  } catch (const std::exception& error) {  // parquet's own
    fault = error.what();
  }
}

}  // namespace dalle2
