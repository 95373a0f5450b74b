// SPDX-License-Identifier: MIT
#include "data/embeddings/caption_table.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/table_files.h"
#include "io/formats/parquet.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLines = ".txt";
constexpr const char* kJsonLines = ".jsonl";
constexpr const char* kShard = ".tar";
constexpr const char* kParquet = ".parquet";

constexpr std::array kPictureFields = {"jpg", "jpeg", "png", "webp"};

[[noreturn]] void throw_for_parquet(const std::string& path,
                                    const std::string& key,
                                    const std::string& fault) {
  throw DataError(
      "{}: '{}': expected captions as .txt, .jsonl or .tar, got .parquet, which only a build with Arrow "
      "reads ({})\n  Build with ./scripts/build.sh --parquet, or convert each file: python3 -c 'import "
      "pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True, "
      "force_ascii=False)' FILE.parquet FILE.jsonl",
      key,
      path,
      fault);
}

/// All of one sort.
std::vector<std::string> caption_files(const std::string& path, const std::string& key) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::exists(path, ignored))
      throw DataError("{}: '{}': no such file or folder on this machine", key, path);
    return {path};
  }
  const auto files = table_files(path, key, {kLines, kJsonLines, kShard});
  std::set<std::string> sorts;
  for (const std::string& file : files) sorts.insert(fs::path(file).extension().string());
  if (sorts.empty()) {
    auto parquet =
        table_files(path, key, {kParquet});  // beside shards they are img2dataset's notes
    if (!parquet.empty()) return parquet;
    throw DataError(
        "{}: expected files .txt, .jsonl, .parquet or .tar with captions in '{}' or below it, found "
        "none",
        key,
        path);
  }
  if (sorts.size() > 1) {
    throw DataError(
        "{}: expected captions of one sort in '{}' and below it, found {} and {} files\n  Name a "
        "folder, or a file, with those that are meant.",
        key,
        path,
        *sorts.begin(),
        *sorts.rbegin());
  }
  return files;
}

/// @param where file and line @return empty if it is null
std::string caption_of_json(const std::string& line,
                            const std::string& caption_key,
                            const std::string& where) {
  const ParsedJson parsed = parse_untrusted_json(line);
  if (!parsed.is_right()) throw DataError("{}: {}", where, parsed.fault);
  const Json& object = parsed.value;
  const auto found = object.is_object() ? object.find(caption_key) : object.end();
  if (!object.is_object() || found == object.end()) {
    throw DataError("{}: expected an object with the key \"{}\", got {}",
                    where,
                    caption_key,
                    object.is_object() ? "one without it" : "something else");
  }
  if (found->is_null()) return "";
  if (!found->is_string()) {
    throw DataError(
        "{}: expected a text as \"{}\", got {}", where, caption_key, found->type_name());
  }
  return found->get<std::string>();
}

bool is_picture_field(const std::string& field) {
  return std::find(kPictureFields.begin(), kPictureFields.end(), field) != kPictureFields.end();
}

}  // namespace

CaptionTable::CaptionTable(const std::string& path,
                           const std::string& key,
                           const std::string& caption_key)
    : key_(key), caption_key_(caption_key) {
  for (const std::string& file : caption_files(path, key)) {
    const int64_t rows_before = rows();
    const std::string extension = fs::path(file).extension().string();
    if (extension == kShard) {
      add_tar(file);
    } else if (extension == kLines || extension == kJsonLines) {
      add_lines(file, extension == kJsonLines);
    } else if (extension == kParquet) {
      add_parquet(file);
    } else {
      throw DataError(
          "{}: expected a file .txt, .jsonl, .parquet or .tar, or a folder of such, got '{}'",
          key,
          file);
    }
    files_.push_back({file, rows() - rows_before});
  }
  if (rows_.empty()) throw DataError("{}: expected captions in '{}', found none", key, path);
}

namespace {

/// A caption that is not UTF-8 counts as none, as in the shards of other runs.
std::string utf8_or_none(std::string caption) {
  return is_utf8(caption) ? std::move(caption) : "";
}

}  // namespace

void CaptionTable::add_lines(const std::string& path, bool is_json) {
  std::ifstream in(path, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    rows_.push_back(
        {.caption = is_json ? caption_of_json(
                                  line,
                                  caption_key_,
                                  fmt::format("{}: {}: line {}", key_, printable(path), number))
                            : utf8_or_none(std::move(line))});
  }
  if (!in.is_open() || in.bad()) {
    throw DataError("{}: {}: cannot be read: {}", key_, printable(path), errno_text(errno));
  }
}

void CaptionTable::add_parquet(const std::string& path) {
  std::vector<std::string> texts;
  std::string fault;
  try {
    load_parquet_module()(path, caption_key_, texts, fault);
  } catch (const NoParquetModule& error) {
    throw_for_parquet(path, key_, error.what());
  }
  if (!fault.empty()) {
    throw DataError(
        "{}: {}: {}\n  /data/caption_key names another column; a file that is damaged has to be made "
        "or fetched again.",
        key_,
        printable(path),
        printable(fault));
  }
  for (std::string& text : texts) rows_.push_back({.caption = utf8_or_none(std::move(text))});
}

void CaptionTable::add_tar(const std::string& path) {
  has_pictures_ = true;
  const TarList list = list_tar(path);
  if (!list.fault.empty()) {
    throw DataError("{}: {}: {}\n  Its samples cannot be counted: give plain tars that are whole.",
                    key_,
                    printable(path),
                    list.fault);
  }
  std::optional<std::string> open_key;
  for (const TarPlace& place : list.places) {
    const auto parts = split_member_name(place.name);
    if (!parts || is_meta_member(place.name)) continue;
    if (open_key != parts->first) rows_.push_back({.file = files_.size()});
    open_key = parts->first;
    Row& row = rows_.back();
    const std::string field = lower_case(parts->second);
    if (field == "txt") {
      row.caption = utf8_or_none(read_tar_member(path, place.offset).content);
    } else if (is_picture_field(field) && !row.picture_offset) {
      row.picture_offset = place.offset;
    }
  }
}

std::optional<std::string> CaptionTable::picture(int64_t row) const {
  const Row& found = at(row);
  if (!found.picture_offset) return std::nullopt;
  return read_tar_member(files_.at(found.file).path, *found.picture_offset).content;
}

}  // namespace dalle2
