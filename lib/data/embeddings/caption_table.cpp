// SPDX-License-Identifier: MIT
#include "data/embeddings/caption_table.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/shards/captions.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/parquet.h"
#include "io/formats/tar.h"
#include "io/formats/webdataset.h"

namespace dalle2 {
namespace {

constexpr const char* kLines = ".txt";
constexpr const char* kJsonLines = ".jsonl";
constexpr const char* kShard = ".tar";
constexpr const char* kParquet = ".parquet";

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
  if (!is_folder(path)) {
    if (!path_exists(path))
      throw DataError("{}: '{}': no such file or folder on this machine", key, path);
    return {path};
  }
  const auto files = table_files(path, key, {kLines, kJsonLines, kShard});
  std::set<std::string> sorts;
  for (const std::string& file : files) sorts.insert(lower_extension(file));
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
  if (found == object.end()) {
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

}  // namespace

CaptionTable::CaptionTable(const std::string& path,
                           const std::string& key,
                           const std::string& caption_key,
                           const CaptionReadConfig& read)
    : key_(key), caption_key_(caption_key), read_(read) {
  check_caption_encoding(read.caption_encoding, "/data/caption_encoding");
  for (const std::string& file : caption_files(path, key)) {
    const int64_t rows_before = rows();
    const std::string extension = lower_extension(file);
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
  DropCounts counts, ignored;
  notes_.report(key, counts, ignored);
}

/// A row without a caption is told of when it is left out.
void CaptionTable::add_row(Row row, const std::string& bytes) {
  CaptionText caption = caption_text(bytes, read_.caption_encoding);
  if (!caption.text.empty()) note_caption(caption, read_, fmt::format("row {}", rows()), notes_);
  row.caption = std::move(caption.text);
  rows_.push_back(std::move(row));
}

void CaptionTable::add_lines(const std::string& path, bool is_json) {
  const std::string where = fmt::format("{}: {}", key_, printable(path));
  std::optional<std::string> text;
  try {
    text = unicode_text(read_file(path));
  } catch (const DataError& error) {
    throw DataError("{}: {}", key_, error.what());
  }
  if (!text) throw DataError("{}: expected text, got damaged UTF-8, UTF-16 or UTF-32", where);
  int64_t number = 0, of_blank = 0;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (is_json && is_blank(line)) {
      if (of_blank == 0) of_blank = number;
      continue;
    }
    if (of_blank > 0)  // those at the end are none
      throw DataError("{}: line {}: expected an object, got an empty line", where, of_blank);
    if (is_json)
      line = caption_of_json(line, caption_key_, fmt::format("{}: line {}", where, number));
    add_row({}, line);
  }
}

void CaptionTable::add_parquet(const std::string& path) {
  const ModuleFunction found = function_of_module(kParquetModule, kReadParquetTexts);
  if (found.function == nullptr) throw_for_parquet(path, key_, found.fault);
  std::vector<std::string> texts;
  std::string fault;
  reinterpret_cast<ReadParquetTexts*>(found.function)(path, caption_key_, texts, fault);
  if (!fault.empty()) {
    throw DataError(
        "{}: {}: {}\n  /data/caption_key names another column; a file that is damaged has to be made "
        "or fetched again.",
        key_,
        printable(path),
        printable(fault));
  }
  for (const std::string& text : texts) add_row({}, text);
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
  if (!list.unread.empty()) log_warning("data", "{}: {}: {}", key_, printable(path), list.unread);
  for (const ListedSample& sample : group_places(list.places)) {
    Row row{.file = files_.size()};
    std::string caption;
    for (const auto& [stored, offset] : sample.members) {
      const std::string field = lower_case(stored);
      if (field == "txt") caption = read_tar_member(path, offset).content;
      if (std::ranges::count(kPictureFields, field) > 0 && !row.picture_offset)
        row.picture_offset = offset;
    }
    add_row(std::move(row), caption);
  }
}

std::optional<std::string> CaptionTable::picture(int64_t row) const {
  const Row& found = at(row);
  if (!found.picture_offset) return std::nullopt;
  return read_tar_member(files_.at(found.file).path, *found.picture_offset).content;
}

}  // namespace dalle2
