// SPDX-License-Identifier: MIT
#include "tracker/own_files.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "io/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

std::string full_path(const std::string& path) {
  fs::path full = fs::absolute(path).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();  // "out/"
  return full.string();
}

/// latest.1.pth of a file, snapshots.1 of a folder.
fs::path numbered(const fs::path& path, int number) {
  std::error_code error;
  if (fs::is_directory(path, error)) return fmt::format("{}.{}", path.string(), number);
  return path.parent_path() /
         fmt::format("{}.{}{}", path.stem().string(), number, path.extension().string());
}

/// Whether there is nothing at `path`, or a file or folder without content.
bool is_nothing(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return true;
  return !fs::is_symlink(status) && fs::is_empty(path, error) && !error;
}

}  // namespace

int free_number(const std::vector<std::string>& paths, int first) {
  const auto taken = [&](int number) {
    return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      std::error_code error;
      return fs::exists(fs::symlink_status(numbered(path, number), error));
    });
  };
  while (taken(first)) ++first;
  return first;
}

std::optional<std::string> set_aside(const std::string& path, int number) {
  if (is_nothing(path)) return std::nullopt;
  std::error_code error;
  const fs::path other = numbered(path, free_number({path}, number));
  fs::rename(path, other, error);
  if (!error) return other.string();
  throw ConfigError(
      "'{}' is of another run and cannot be renamed: {}\n"
      "  Move it away, or choose another place (/tracker/data_path, /tracker/save).",
      path,
      error.message());
}

OwnFiles::OwnFiles(const std::string& data_path)
    : data_path_(full_path(data_path)), record_path_((fs::path(data_path) / kRecordFile).string()) {
  std::error_code ignored;
  if (!fs::exists(record_path_, ignored)) return;
  recorded_ = true;  // a damaged one knows of no file: at worst something is set aside
  const Json record = parse_untrusted_object(read_file(record_path_));
  if (record.is_null()) return;
  const auto begin = record.find("began_from");
  if (begin != record.end() && begin->is_string()) began_from_ = begin->get<std::string>();
  const auto paths = record.find("paths");
  if (paths == record.end() || !paths->is_array()) return;
  for (const Json& path : *paths) {
    if (path.is_string()) paths_.insert(path.get<std::string>());
  }
}

std::string OwnFiles::key_of(const std::string& path) const {
  const fs::path full = full_path(path);
  const fs::path relative = full.lexically_relative(data_path_);
  const bool below = !relative.empty() && *relative.begin() != "..";
  return (below ? relative : full).string();
}

std::vector<std::string> OwnFiles::paths() const {
  std::vector<std::string> full;
  for (const std::string& path : paths_) full.push_back((fs::path(data_path_) / path).string());
  return full;
}

bool OwnFiles::contains(const std::string& path) const {
  return paths_.contains(key_of(path));
}

void OwnFiles::start_over(const std::string& began_from, const std::vector<std::string>& paths) {
  paths_.clear();
  for (const std::string& path : paths) paths_.insert(key_of(path));
  also_own_.clear();
  began_from_ = began_from.empty() ? "" : key_of(began_from);
  recorded_ = true;
  own_all_ = false;
  write();
}

std::optional<std::string> OwnFiles::claim(const std::string& path) {
  if (contains(path)) return std::nullopt;
  std::optional<std::string> moved;
  if (!own_all_ && also_own_ != key_of(path)) moved = set_aside(path);
  paths_.insert(key_of(path));
  write();
  return moved;
}

void OwnFiles::write() const {
  Json record;
  if (!began_from_.empty()) record["began_from"] = began_from_;
  record["paths"] = paths_;
  // A name that is no UTF-8 is not found again: what is there is set aside once more.
  write_file_atomically(record_path_,
                        record.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace dalle2
