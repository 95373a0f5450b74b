// SPDX-License-Identifier: MIT
#include "tracker/run_folder/own_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "tracker/run_folder/run_files.h"

namespace dalle2 {
namespace {

constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

bool is_hex(char digit) {
  return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
}

namespace fs = std::filesystem;

std::string full_path(const std::string& path) {
  fs::path full = fs::absolute(path).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();  // "out/"
  return full.string();
}

/// Whether there is nothing at `path`, or a file or folder without content.
bool is_nothing(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return true;
  return !fs::is_symlink(status) && fs::is_empty(path, error) && !error;
}

std::string text_of(const Json& record, const char* key) {
  const auto entry = record.find(key);
  return entry != record.end() && entry->is_string() ? entry->get<std::string>() : "";
}

}  // namespace

std::string numbered_path(const std::string& path, int number) {
  std::error_code error;
  if (fs::is_directory(path, error)) return fmt::format("{}.{}", path, number);
  const fs::path file(path);
  return (file.parent_path() /
          fmt::format("{}.{}{}", file.stem().string(), number, file.extension().string()))
      .string();
}

std::string make_run_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/uuid") >> id;
  if (!is_run_id(id)) throw ResourceError("the system gives no random UUID for the id of the run");
  return id;
}

bool is_run_id(const std::string& text) {
  return text.size() == kForm.size() &&
         std::equal(text.begin(), text.end(), kForm.begin(), [](char have, char form) {
           return form == '-' ? have == '-' : is_hex(have);
         });
}

int free_number(const std::vector<std::string>& paths, int first) {
  const auto taken = [&](int number) {
    return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      std::error_code error;
      return fs::exists(fs::symlink_status(numbered_path(path, number), error));
    });
  };
  while (taken(first)) ++first;
  return first;
}

std::optional<std::string> set_aside(const std::string& path, int number) {
  if (is_nothing(path)) return std::nullopt;
  std::error_code error;
  const std::string other = numbered_path(path, free_number({path}, number));
  fs::rename(path, other, error);
  if (!error) return other;
  throw ConfigError(
      "'{}' belongs to another run and cannot be renamed: {}\n  Move it away, or choose another "
      "place (/tracker/data_path, /tracker/save).",
      path,
      error.message());
}

OwnFiles::OwnFiles(const std::string& data_path, const std::string& marked_id)
    : data_path_(full_path(data_path)),
      record_path_((fs::path(data_path) / kRecordFile).string()),
      run_id_(marked_id) {
  std::error_code ignored;
  if (!fs::exists(record_path_, ignored)) return;
  struct stat status {};
  if (::stat(record_path_.c_str(), &status) == 0) recorded_at_ = status.st_mtim;
  recorded_ = true;  // a damaged one knows of no file: at worst something is set aside
  const Json record = parse_untrusted_object(read_file(record_path_));
  if (record.is_null()) return;
  if (const std::string id = text_of(record, "run_id"); is_run_id(id)) run_id_ = id;
  home_ = text_of(record, "data_path");
  began_from_ = text_of(record, "began_from");
  began_from_here_ = text_of(record, "began_from_here");
  finished_as_ = text_of(record, "finished_as");
  const auto read_set = [&](const char* key, std::set<std::string>& texts) {
    const auto found = record.find(key);
    if (found == record.end() || !found->is_array()) return;
    for (const Json& text : *found) {
      if (text.is_string()) texts.insert(text.get<std::string>());
    }
  };
  knows_earlier_ids_ = record.contains("earlier_run_ids");
  read_set("earlier_run_ids", earlier_ids_);
  read_set("paths", paths_);
}

bool OwnFiles::is_copy() const {
  std::error_code error;
  if (run_id_.empty() || home_.empty() || home_ == data_path_) return false;
  if (!fs::is_directory(home_, error) || fs::equivalent(home_, data_path_, error)) return false;
  return OwnFiles(home_).run_id() == run_id_;  // else it was moved, and another run is there now
}

std::string OwnFiles::key_of(const std::string& path) const {
  if (path.find("://") != std::string::npos) return path;  // an address
  const fs::path full = full_path(path);
  const fs::path relative = full.lexically_relative(data_path_);
  const bool below = !relative.empty() && *relative.begin() != "..";
  return (below ? relative : full).string();
}

std::string OwnFiles::from_here(const std::string& path) const {
  if (path.find("://") != std::string::npos) return "";
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(path, error), error);
  const fs::path folder = fs::weakly_canonical(data_path_, error);
  return file.empty() || folder.empty() ? "" : file.lexically_relative(folder).string();
}

bool OwnFiles::began_from(const std::string& path) const {
  if (began_from_ == key_of(path)) return true;
  return !began_from_here_.empty() && began_from_here_ == from_here(path);
}

std::vector<std::string> OwnFiles::paths() const {
  std::vector<std::string> full;
  for (const std::string& path : paths_) full.push_back((fs::path(data_path_) / path).string());
  return full;
}

bool OwnFiles::is_below(const std::string& path) const {
  return fs::path(key_of(path)).is_relative();
}

bool OwnFiles::contains(const std::string& path) const {
  return paths_.contains(key_of(path));
}

void OwnFiles::start_over(const std::string& run_id,
                          const std::string& began_from,
                          const std::vector<std::string>& paths) {
  run_id_ = run_id;
  paths_.clear();
  for (const std::string& path : paths) paths_.insert(key_of(path));
  also_own_.clear();
  earlier_ids_.clear();
  knows_earlier_ids_ = true;
  began_from_ = began_from.empty() ? "" : key_of(began_from);
  began_from_here_ = began_from.empty() ? "" : from_here(began_from);
  finished_as_.clear();
  recorded_ = true;
  own_all_ = false;
  write();
}

void OwnFiles::finish_as(const std::string& what) {
  if (finished_as_ == what) return;
  finished_as_ = what;
  write();
}

void OwnFiles::forget_elsewhere() {
  std::erase_if(paths_, [](const std::string& path) { return fs::path(path).is_absolute(); });
}

void OwnFiles::rename(const std::string& run_id) {
  if (!run_id_.empty()) earlier_ids_.insert(run_id_);
  run_id_ = run_id;
  recorded_ = true;
  write();
}

bool OwnFiles::is_of_another_run(const std::string& path, const std::string& written_by) const {
  if (run_id_.empty() || written_by.empty() || written_by == run_id_) return false;
  if (also_own_ == key_of(path)) return false;
  // The folder is locked, but savers of another run may write into it. In a copy, files have the original's id.
  const bool is_snapshot = fs::path(key_of(path)).parent_path() == kSnapshotsFolder;
  const bool is_of_original = is_below(path) && (contains(path) || is_snapshot) &&
                              (!knows_earlier_ids_ || earlier_ids_.contains(written_by));
  return !is_of_original;
}

bool OwnFiles::is_taken_over(const std::string& path) const {
  if (!contains(path) || is_below(path) || claimed_.contains(key_of(path))) return false;
  struct stat status {};
  for (int number = 1; ::lstat(numbered_path(path, number).c_str(), &status) == 0; ++number) {
    const bool is_later = status.st_ctim.tv_sec > recorded_at_.tv_sec ||
                          (status.st_ctim.tv_sec == recorded_at_.tv_sec &&
                           status.st_ctim.tv_nsec > recorded_at_.tv_nsec);
    if (is_later) return true;
  }
  return false;
}

std::optional<std::string> OwnFiles::claim(const std::string& path,
                                           const std::string& written_by,
                                           bool must_write) {
  const bool resumed_from = also_own_ == key_of(path);
  const bool is_another =
      written_by.empty() ? is_taken_over(path) : is_of_another_run(path, written_by);
  claimed_.insert(key_of(path));
  if (is_another && !must_write && contains(path) && !contested_.insert(key_of(path)).second) {
    throw ConfigError(
        "'{}' is written by another run too: it is left as it is\n"
        "  Give each run its own target (/tracker/save).",
        path);
  }
  if (resumed_from) also_own_.clear();
  if (contains(path) && !is_another) return std::nullopt;
  const bool is_ours = own_all_ || resumed_from || (!written_by.empty() && !is_another);
  std::optional<std::string> moved;
  if (is_another || !is_ours) moved = set_aside(path);
  paths_.insert(key_of(path));
  write();
  return moved;
}

void OwnFiles::write() const {
  Json record;
  record["run_id"] = run_id_;
  record["data_path"] = data_path_;
  if (knows_earlier_ids_) record["earlier_run_ids"] = earlier_ids_;
  if (!began_from_.empty()) record["began_from"] = began_from_;
  if (!began_from_here_.empty()) record["began_from_here"] = began_from_here_;
  if (!finished_as_.empty()) record["finished_as"] = finished_as_;
  record["paths"] = paths_;
  // A name that is not UTF-8 is not found again: what is there is set aside again.
  write_file_atomically(record_path_,
                        record.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace dalle2
