// SPDX-License-Identifier: MIT
#include "io/files/writable.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"

namespace dalle2 {
namespace {

/// The error of making something in a folder, 0 for none: to root access() allows all, and some file
/// systems (/proc) take nothing.
int fault_of_making(const std::filesystem::path& folder) {
  const int nameless = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (nameless >= 0) {
    ::close(nameless);
    return 0;
  }
  if (errno == EACCES || errno == EPERM || errno == EROFS) return errno;
  // A file system without such files: a folder that is removed again.
  std::string probe = (folder / ".dalle2-XXXXXX").string();
  if (::mkdtemp(probe.data()) != nullptr) return ::rmdir(probe.c_str()) == 0 ? 0 : errno;
  return errno == ENOSPC || errno == EDQUOT ? 0 : errno;  // room may come
}

}  // namespace

std::optional<std::string> why_not_writable(const std::string& folder) {
  std::filesystem::path place = folder.empty() ? "." : folder;
  struct stat status = {};
  // Up to the nearest place that is there: below it folders would be made.
  while (::stat(place.c_str(), &status) != 0) {
    if (struct stat link = {}; errno == ENOENT && ::lstat(place.c_str(), &link) == 0) {
      std::error_code ignored;
      return fmt::format("'{}' is a link to '{}', which does not exist: mount or make that first",
                         place.string(),
                         std::filesystem::read_symlink(place, ignored).string());
    }
    if (errno != ENOENT && errno != ENOTDIR) {
      return fmt::format("'{}' cannot be looked at: {}", place.string(), errno_text(errno));
    }
    std::filesystem::path parent = place.parent_path();
    if (parent == place) break;  // the root itself
    place = parent.empty() ? std::filesystem::path(".") : parent;
  }
  if (!S_ISDIR(status.st_mode)) {
    return fmt::format("'{}' is a file; expected a folder", place.string());
  }
  const int fault = ::access(place.c_str(), W_OK | X_OK) == 0 ? fault_of_making(place) : errno;
  if (fault == 0) return std::nullopt;
  return fmt::format("'{}' is not writable: {}", place.string(), errno_text(fault));
}

std::optional<std::string> why_file_not_writable(const std::string& path) {
  struct stat status = {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  if (is_there && S_ISDIR(status.st_mode)) {
    return fmt::format("'{}' is a folder, a file is expected", path);
  }
  if (is_there && !S_ISREG(status.st_mode)) {
    return fmt::format("'{}' is a device or a pipe, which a file must not replace", path);
  }
  return why_not_writable(std::filesystem::path(path).parent_path().string());
}

std::optional<uint64_t> free_disk_bytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path place = fs::absolute(folder.empty() ? "." : folder, error);
  while (place.has_relative_path() && !fs::exists(place, error)) place = place.parent_path();
  const fs::space_info space = fs::space(place, error);
  if (error || space.capacity == 0) return std::nullopt;  // a file system that does not count
  return space.available;
}

}  // namespace dalle2
