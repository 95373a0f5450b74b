// SPDX-License-Identifier: MIT
#include "io/writable.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"

namespace dalle2 {

std::optional<std::string> why_not_writable(const std::string& folder) {
  std::filesystem::path place = folder.empty() ? "." : folder;
  struct stat status = {};
  // Up to the nearest place that is there: below it folders would be made.
  while (::stat(place.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) {
      return fmt::format("'{}' cannot be looked at: {}", place.string(), errno_text(errno));
    }
    std::filesystem::path parent = place.parent_path();
    if (parent == place) break;  // the root itself
    place = parent.empty() ? std::filesystem::path(".") : parent;
  }
  if (!S_ISDIR(status.st_mode)) {
    return fmt::format("'{}' is a file, a folder is expected", place.string());
  }
  if (::access(place.c_str(), W_OK | X_OK) == 0) return std::nullopt;
  return fmt::format("'{}' is not writable: {}", place.string(), errno_text(errno));
}

std::optional<std::string> why_file_not_writable(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return fmt::format("'{}' is a folder, a file is expected", path);
  }
  return why_not_writable(std::filesystem::path(path).parent_path().string());
}

}  // namespace dalle2
