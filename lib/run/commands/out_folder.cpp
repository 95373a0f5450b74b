// SPDX-License-Identifier: MIT
#include "run/commands/out_folder.h"

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "checkpoint/fsck.h"
#include "tracker/run_folder/own_files.h"
#include "tracker/run_folder/run_lock.h"

namespace dalle2 {

void check_out_folder(const std::string& option, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return;
  throw ConfigError("{} {}: there is no folder {} (relative to {})",
                    option,
                    path,
                    folder.string(),
                    std::filesystem::current_path().string());
}

void check_new_file(const std::string& option, const std::string& path, bool overwrite) {
  std::error_code ignored;
  if (overwrite || !std::filesystem::exists(path, ignored)) return;
  throw ConfigError(
      "{} {}: the file exists\n  Name another one, or add --overwrite.", option, path);
}

namespace {

/// Whether the run of a folder above `path` has recorded it.
bool is_recorded(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path full = std::filesystem::absolute(path, ignored).lexically_normal();
  for (auto folder = full.parent_path(); folder != folder.parent_path();
       folder = folder.parent_path()) {
    if (!std::filesystem::exists(folder / kRecordFile, ignored)) continue;
    try {
      const OwnFiles own(folder.string());
      if (own.contains(full.string()) || own.contains(full.parent_path().string())) return true;
    } catch (const DataError&) {  // the record of a run that is not this user's
    }
  }
  return false;
}

}  // namespace

void check_new_weights(const std::string& option, const std::string& path, bool overwrite) {
  std::error_code ignored;
  if (overwrite || !std::filesystem::is_regular_file(path, ignored)) return;
  const bool is_recorded_file = is_recorded(path);
  const CheckedFile found = check_file(path);
  if (!is_recorded_file && found.resume == Resume::kNo) check_new_file(option, path, overwrite);
  throw ConfigError(
      "{} {}: is a file of a run, which may be the only one to resume from\n"
      "  Name another file, or add --overwrite.",
      option,
      path);
}

std::function<void()> hold_shards_folder(const std::string& out) {
  const auto lock = std::make_shared<RunLock>(
      LockPlace{.folder = out,
                .file = "shards.lock",
                .key = "--out",
                .clash = "Two commands would mix their shards.",
                .when_lost = "Stop one of the two, and make the shards again."});
  return [lock] { lock->look(); };
}

}  // namespace dalle2
