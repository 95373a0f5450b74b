// SPDX-License-Identifier: MIT
#include "data/shards/captions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Captions = std::map<std::string, std::string>;

// In the order in which they are tried.
constexpr std::array kCaptionExtensions = {
    ".txt", ".TXT", ".caption", ".CAPTION", ".json", ".JSON"};

bool is_table_name(const fs::path& path) {
  const std::string name = lower_case(path.filename().string());
  return name == "metadata.jsonl" || name == "metadata.csv";
}

std::string caption_member(const Json& object) {
  std::string caption = text_member(object, "caption");
  return caption.empty() ? text_member(object, "text") : caption;
}

std::string normal(const std::string& file) {
  return fs::path(file).lexically_normal().string();
}

/// @return what is wrong with the table, whose captions up to there count
std::string add_json_lines(std::string_view text, Captions& captions) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (is_blank(line)) continue;
    const Json object = parse_untrusted_object(line);
    const std::string file = text_member(object, "file_name");
    if (file.empty()) return fmt::format("line {}: expected an object with \"file_name\"", number);
    captions[normal(file)] = caption_member(object);
  }
  return "";
}

/// Takes a row from the front (RFC 4180).
std::vector<std::string> take_row(std::string_view& text, char separator) {
  std::vector<std::string> values(1);
  bool is_quoted = false;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' && is_quoted && text.substr(at + 1).starts_with('"')) {
      values.back() += text[at++];
    } else if (c == '"' && (is_quoted || values.back().empty())) {
      is_quoted = !is_quoted;
    } else if (is_quoted || (c != separator && c != '\r' && c != '\n')) {
      values.back() += c;
    } else if (c == separator) {
      values.emplace_back();
    } else if (c == '\n') {
      break;
    }
  }
  text.remove_prefix(std::min(at + 1, text.size()));
  return values;
}

/// @return as add_json_lines()
std::string add_csv(std::string_view text, Captions& captions) {
  const std::string_view line = text.substr(0, text.find('\n'));
  char separator = ',';  // spreadsheets write semicolons where the decimal sign is a comma
  for (const char other : {';', '\t'}) {
    if (line.find(separator) == std::string_view::npos) separator = other;
  }
  const std::vector<std::string> head = take_row(text, separator);
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::ranges::find(head, name) - head.begin());
  };
  const size_t file = column("file_name"), caption = std::min(column("caption"), column("text"));
  if (std::max(file, caption) >= head.size())
    return "line 1: expected the columns file_name and text, separated by commas, semicolons or tabs";
  while (!text.empty()) {
    const std::vector<std::string> row = take_row(text, separator);
    if (row.size() > std::max(file, caption)) captions[normal(row[file])] = row[caption];
  }
  return "";
}

/// With a mark, or in UTF-16, as UTF-8; another as it is.
std::string text_of(const fs::path& file) {
  const std::string bytes = read_file(file.string());
  return unicode_text(bytes).value_or(bytes);
}

}  // namespace

std::string text_member(const Json& object, const char* key) {
  const Json value = object.is_object() ? object.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

CaptionText caption_of(const GroupedSample& sample, const std::string& encoding) {
  const std::string* bytes = sample.find({"txt"});
  if (bytes == nullptr) return {.fault = no_field_text(sample, std::array{"txt"})};
  return caption_text(*bytes, encoding);
}

std::string chosen_lines(std::string text, CaptionLines lines, const RandomBits& random) {
  if (lines == CaptionLines::all || text.find_first_of("\r\n") == std::string::npos) return text;
  const std::vector<std::string> all = text_lines(text);
  if (all.empty()) return text;
  return all[lines == CaptionLines::first ? 0 : random() % all.size()];
}

void note_caption(const CaptionText& caption,
                  const CaptionReadConfig& read,
                  const std::string& where,
                  DropLog& notes) {
  if (caption.text.empty() && !caption.fault.empty())
    notes.add(drop::kBadCaption, fmt::format("{}: {}", where, caption.fault));
  if (caption.is_assumed) {
    notes.add(drop::kAssumedEncoding,
              fmt::format("{}: its caption is not UTF-8, and is read as {} (caption_encoding)",
                          where,
                          read.caption_encoding));
  }
  if (caption.lines > 1 && read.caption_lines == CaptionLines::all) {
    notes.add(drop::kSeveralLines,
              fmt::format("{}: its caption has {} lines, and all are used: caption_lines \"first\" "
                          "or \"drawn\" takes one",
                          where,
                          caption.lines));
  }
}

bool is_caption_name(const fs::path& path) {
  return is_table_name(path) ||
         std::ranges::find(kCaptionExtensions, path.extension()) != kCaptionExtensions.end();
}

std::optional<std::string> FolderCaptions::of(const fs::path& picture,
                                              const fs::path& source,
                                              const std::string& encoding) const {
  for (const char* extension : kCaptionExtensions) {
    std::error_code ignored;
    const fs::path file = fs::path(picture).replace_extension(extension);
    if (!fs::is_regular_file(file, ignored)) continue;
    const bool is_json = lower_extension(file) == ".json";
    const std::string caption =
        is_json ? caption_member(parse_untrusted_object(json_of(file, encoding))) : text_of(file);
    if (is_json && caption.empty()) break;
    return caption.substr(0, caption.find_last_not_of("\r\n") + 1);
  }
  fs::path folder = picture.parent_path(), below = source.filename();
  for (fs::path rest = source.parent_path();; rest = rest.parent_path()) {
    const Table& table = table_of(folder, encoding);
    const auto found = table.find(below.string());
    if (found != table.end()) return found->second;
    if (rest.empty()) return std::nullopt;
    below = rest.filename() / below;
    folder = folder.parent_path();
  }
}

std::string FolderCaptions::json_of(const fs::path& file, const std::string& encoding) const {
  const std::string bytes = read_file(file.string());
  if (is_blank(bytes)) return "";
  CaptionText text = caption_text(bytes, encoding);
  if (text.text.empty()) throw DataError("{}: {}", printable(file.string()), text.fault);
  if (text.is_assumed && !told_of_encoding_.exchange(true)) {
    log_warning("data",
                "{}: not UTF-8; it and others like it are read as {} (caption_encoding)",
                printable(file.string()),
                encoding);
  }
  return std::move(text.text);
}

const FolderCaptions::Table& FolderCaptions::table_of(const fs::path& folder,
                                                      const std::string& encoding) const {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = tables_.try_emplace(folder);
  if (is_new) place->second = read_table(folder, encoding);
  return place->second;
}

FolderCaptions::Table FolderCaptions::read_table(const fs::path& folder,
                                                 const std::string& encoding) const {
  Table table;
  std::vector<std::string> named, lines;  // metadata.csv comes before metadata.jsonl
  for (const fs::path path : files_in_folder(folder.string())) {
    if (is_table_name(path)) {
      named.push_back(path.string());
    } else if (lower_extension(path) == ".jsonl") {
      lines.push_back(path.string());
    }
  }
  if (named.empty() && lines.size() != 1) return table;
  const std::string path = named.empty() ? lines.front() : named.back();
  std::string fault;
  try {
    fault = lower_extension(path) == ".csv" ? add_csv(text_of(path), table)
                                            : add_json_lines(json_of(path, encoding), table);
  } catch (const DataError& error) {
    log_warning("data", "{}\n  None of its captions is used.", error.what());
    return {};
  }
  // Another .jsonl may be no table of pictures.
  if (!fault.empty() && (!named.empty() || !table.empty()))
    log_warning(
        "data", "{}: {}\n  Its captions from there on are not used.", printable(path), fault);
  return table;
}

}  // namespace dalle2
