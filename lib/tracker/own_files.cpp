// SPDX-License-Identifier: MIT
#include "tracker/own_files.h"

#include <sys/stat.h>

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

/// Size and time of change of a file: other bytes have others.
std::string stamp_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return "absent";
  return fmt::format(
      "{} bytes, {}.{:09}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
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
  const auto stamps = record.find("stamps");
  if (stamps != record.end() && stamps->is_object()) {
    for (const auto& [path, stamp] : stamps->items()) {
      if (stamp.is_string()) stamps_[path] = stamp.get<std::string>();
    }
  }
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
  stamps_.clear();
  for (const std::string& path : paths) paths_.insert(key_of(path));
  also_own_.clear();
  began_from_ = began_from.empty() ? "" : key_of(began_from);
  recorded_ = true;
  own_all_ = false;
  write();
}

bool OwnFiles::is_replaced(const std::string& path) const {
  const auto known = stamps_.find(key_of(path));
  return known != stamps_.end() && !is_nothing(path) && stamp_of(path) != known->second;
}

void OwnFiles::wrote(const std::string& path) {
  // What is below data_path no other run writes: it is locked.
  if (fs::path(key_of(path)).is_relative()) return;
  stamps_[key_of(path)] = stamp_of(path);
  write();
}

std::optional<std::string> OwnFiles::claim(const std::string& path) {
  const bool gone_on_from = also_own_ == key_of(path);
  const bool replaced = is_replaced(path) && !gone_on_from;
  if (replaced && !contested_.insert(key_of(path)).second) {
    throw ConfigError(
        "'{}' is written by another run too: it is left as it is\n"
        "  Give each run its own target (/tracker/save).",
        path);
  }
  // What is being written has no stamp: a run that is killed now finds its own file.
  if (gone_on_from) also_own_.clear();
  const bool had_stamp = stamps_.erase(key_of(path)) > 0;
  if (contains(path) && !replaced) {
    if (had_stamp) write();
    return std::nullopt;
  }
  std::optional<std::string> moved;
  if (replaced || (!own_all_ && !gone_on_from)) moved = set_aside(path);
  paths_.insert(key_of(path));
  write();
  return moved;
}

void OwnFiles::write() const {
  Json record;
  if (!began_from_.empty()) record["began_from"] = began_from_;
  record["paths"] = paths_;
  if (!stamps_.empty()) record["stamps"] = stamps_;
  // A name that is no UTF-8 is not found again: what is there is set aside once more.
  write_file_atomically(record_path_,
                        record.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace dalle2
