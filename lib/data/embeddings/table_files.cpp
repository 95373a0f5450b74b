// SPDX-License-Identifier: MIT
#include "data/embeddings/table_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "io/files/walk_folder.h"

namespace dalle2 {

namespace fs = std::filesystem;

std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw DataError("{}: expected a folder of {} files, got '{}', which is {}",
                    key,
                    fmt::join(extensions, " or "),
                    folder,
                    fs::exists(folder, error) ? "a file" : "not there");
  }
  std::vector<std::string> files;
  const WalkEnd end = walk_folder(folder, Below::kAll, [&](const fs::directory_entry& entry) {
    const std::string extension = entry.path().extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) != extensions.end())
      files.push_back(entry.path().string());
  });
  if (end.error) {
    throw DataError(
        "{}: the folder '{}', or one below it, cannot be read: {}\n"
        "  Make them readable for this user, or name another folder.",
        key,
        folder,
        end.error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace dalle2
