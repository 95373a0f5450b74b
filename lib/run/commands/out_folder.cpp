// SPDX-License-Identifier: MIT
#include "run/commands/out_folder.h"

#include <filesystem>
#include <memory>

#include "base/error.h"
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
