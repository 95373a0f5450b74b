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

// In the order in which they are tried.
constexpr std::array kCaptionExtensions = {
    ".txt", ".TXT", ".caption", ".CAPTION", ".json", ".JSON"};

bool is_table_name(const fs::path& path) {
  const std::string name = lower_case(path.filename().string());
  return name == "metadata.jsonl" || name == "metadata.csv";
}

/// The text of "caption", else of "text"; empty for an object with neither.
/// @param fault set for what can be no caption
std::string caption_member(const Json& object, std::string& fault) {
  if (!object.is_object()) fault = "expected a JSON object";
  for (const char* key : {"caption", "text"}) {
    std::string caption = text_member(object, key);
    if (!caption.empty()) return caption;
    const Json value = object.is_object() ? object.value(key, Json()) : Json();
    if (!value.is_null() && !value.is_string())
      fault = fmt::format("\"{}\": expected a text, got {}", key, value.type_name());
  }
  return "";
}

/// A table of captions, and its rows that give none.
struct CaptionRows {
  fs::path folder;
  std::map<std::string, std::string> captions = {};  // by path below the folder
  DropLog left_out = {};
  std::string fault = {};  // captions up to there count

  void add(int64_t line, std::string file, std::string caption) {
    const std::string shown = fmt::format("line {}: {}", line, printable(file));
    std::ranges::replace(file, '\\', '/');
    file = fs::path(file).lexically_normal().string();
    std::error_code ignored;
    if (!fs::is_regular_file(folder / file, ignored) || fs::path(file).is_absolute()) {
      left_out.add("unmatched row", shown + " is no path of a file below the table's folder");
    } else if (!captions.insert_or_assign(file, std::move(caption)).second) {
      left_out.add("repeated row", shown + " has an earlier row too, which is left out");
    }
  }
  void add_json_lines(std::string_view text);
  void add_csv(std::string_view text);
};

void CaptionRows::add_json_lines(std::string_view text) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (is_blank(line)) continue;
    const Json object = parse_untrusted_object(line);
    const std::string file = text_member(object, "file_name");
    std::string unfit, caption = caption_member(object, unfit);
    if (file.empty()) unfit = "expected an object with \"file_name\"";
    if (unfit.empty())
      add(number, file, std::move(caption));
    else
      left_out.add("malformed row", fmt::format("line {}: {}", number, unfit));
  }
}

/// Takes a row from the front (RFC 4180). @return none if a quote of it has no end
std::optional<std::vector<std::string>> take_row(std::string_view& text, char separator) {
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
  return is_quoted ? std::nullopt : std::optional(values);
}

void CaptionRows::add_csv(std::string_view text) {
  const std::string_view front = text.substr(0, text.find_first_of("\r\n"));
  char separator = ',';  // spreadsheets write semicolons where the decimal sign is a comma
  for (const char other : {';', '\t'}) {
    if (front.find(separator) == std::string_view::npos) separator = other;
  }
  int64_t line = 1;
  const auto next_row = [&] {
    const std::string_view before = text;
    auto row = take_row(text, separator);
    line += std::ranges::count(before.substr(0, before.size() - text.size()), '\n');
    return row;
  };
  const auto head = next_row().value_or(std::vector<std::string>());
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::ranges::find(head, name) - head.begin());
  };
  const size_t file = column("file_name"), caption = std::min(column("caption"), column("text"));
  if (std::max(file, caption) >= head.size()) {
    fault = fmt::format(
        "line 1: expected the columns file_name and text, separated by commas, semicolons or tabs, got {}",
        printable(std::string(front)));
    return;
  }
  while (!text.empty()) {
    const int64_t begin = line;
    const auto row = next_row();
    if (!row) {
      fault = fmt::format("line {}: a quote begins here that has no end", begin);
      return;
    }
    if (std::ranges::all_of(*row, is_blank)) continue;
    if (row->size() <= head.size() && row->size() > std::max(file, caption)) {
      add(begin, (*row)[file], (*row)[caption]);
    } else {
      const char* const advice =
          row->size() > head.size()
              ? ": a text with the separator in it stands in quotes, right behind a separator"
              : "";
      left_out.add("malformed row",
                   fmt::format("line {}: expected {} as in line 1, got {}{}",
                               begin,
                               counted(std::ssize(head), "value"),
                               row->size(),
                               advice));
    }
  }
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
    notes.add(caption.is_unread ? drop::kUnreadCaption : drop::kBadCaption,
              fmt::format("{}: {}", where, caption.fault));
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
    std::string caption, fault;
    if (lower_extension(file) != ".json") {
      caption = text_of(file);
    } else if (const std::string json = json_of(file, encoding); !json.empty()) {
      caption = caption_member(parse_untrusted_object(json), fault);
      if (!fault.empty()) throw DataError("{}: {}", printable(file.string()), fault);
    }
    if (caption.empty() && lower_extension(file) == ".json") break;
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
  constexpr std::array kTableExtensions = {".jsonl", ".csv", ".tsv", ".parquet"};
  fs::path path;
  std::vector<fs::path> tables, lines;
  for (const fs::path each : files_in_folder(folder.string())) {
    const std::string extension = lower_extension(each);
    if (is_table_name(each)) path = each;  // metadata.jsonl comes after metadata.csv
    if (extension == ".jsonl") lines.push_back(each);
    if (std::ranges::find(kTableExtensions, extension) != kTableExtensions.end() ||
        lower_case(each.filename().string()) == "metadata.json")
      tables.push_back(each);
  }
  const bool is_named = !path.empty();
  if (!is_named && lines.size() == 1) path = lines.front();
  for (const fs::path& table : tables) {
    if (table == path) continue;
    log_warning(
        "data",
        "{}: no captions are read from it: the table of a folder is its metadata.jsonl, its "
        "metadata.csv with the columns file_name and text, or its only .jsonl",
        printable(table.string()));
  }
  if (path.empty()) return {};
  const std::string shown = printable(path.string());
  CaptionRows rows{.folder = folder};
  try {
    const bool is_csv = lower_extension(path) == ".csv";
    std::string text = is_csv ? text_of(path) : json_of(path, encoding);
    if (text.find('\n') == std::string::npos) std::ranges::replace(text, '\r', '\n');
    is_csv ? rows.add_csv(text) : rows.add_json_lines(text);
  } catch (const DataError& error) {
    log_warning("data", "{}\n  None of its captions is used.", error.what());
    return {};
  }
  if (!rows.fault.empty())
    log_warning("data", "{}: {}\n  Its captions from there on are not used.", shown, rows.fault);
  // Another .jsonl may be no table of pictures.
  if (!rows.left_out.empty() && (is_named || !rows.captions.empty())) {
    log_warning("data", "{}: {}", shown, rows.left_out.report_all(shown));
  }
  return std::move(rows.captions);
}

}  // namespace dalle2
