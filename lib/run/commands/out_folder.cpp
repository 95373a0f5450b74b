// SPDX-License-Identifier: MIT
#include "run/commands/out_folder.h"

#include <filesystem>

#include "base/error.h"

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

}  // namespace dalle2
