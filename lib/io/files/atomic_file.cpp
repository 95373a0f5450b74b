// SPDX-License-Identifier: MIT
#include "io/files/atomic_file.h"

#include "base/error.h"
#include "base/this_process.h"
#include "io/files/folder_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_write_error(const std::string& path,
                                    const std::string& doing,
                                    int error_number) {
  const std::string text = fmt::format("{}: cannot {}: {}", path, doing, errno_text(error_number));
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      throw DiskFullError(
          "{}.\n  Free some space (an older file of this name is untouched), or choose another "
          "folder, and run again.",
          text);
    case EFBIG:
      throw DiskFullError(
          "{}.\n  Raise the limit of file sizes (`ulimit -f`); an older file of this name is untouched.",
          text);
    case EIO:
      throw ResourceError(
          "{}.\n  The disk or the network file system fails; an older file of this name is "
          "untouched.",
          text);
    case EACCES:
    case EPERM:
    case EROFS:
      throw DataError("{}.\n  Make the folder writable for this user, or choose another one.",
                      text);
    default:
      throw DataError("{}", text);
  }
}

/// fsync of a folder, so that a rename or a new entry in it outlives a power cut.
/// @return 0 or errno
int sync_folder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return errno == EACCES ? 0 : errno;  // a folder may be writable and yet not readable
  }
  int result = 0;
  while ((result = fsync(descriptor)) != 0 && errno == EINTR) {
  }
  const int error_number = result == 0 ? 0 : errno;
  close(descriptor);
  // Some file systems refuse to sync a folder; there is nothing more that could be done.
  return error_number == EINVAL || error_number == ENOTSUP || error_number == EROFS ? 0
                                                                                    : error_number;
}

std::string parent_folder(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void flush_folder_of(const std::string& path) {
  const int error_number = fails_here("dirsync") ? errno : sync_folder(parent_folder(path));
  if (error_number != 0) throw_write_error(path, "flush its folder", error_number);
}

/// mkdir -p, with each new entry flushed.
void create_folders(const std::string& folder, const std::string& for_path) {
  if (path_exists(folder)) return;
  const std::string parent = parent_folder(folder);
  if (parent != folder) create_folders(parent, for_path);
  if (fails_here("mkdir") || mkdir(folder.c_str(), 0777) != 0) {
    if (errno != EEXIST) throw_write_error(for_path, "create its folder", errno);
    return;
  }
  if (const int error_number = sync_folder(parent)) {
    throw_write_error(for_path, "flush the folder above it", error_number);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), part_path_(path_ + ".part") {
  create_folders(parent_folder(path_), path_);
  if (is_folder(path_)) throw_write_error(path_, "write", EISDIR);
  if (std::error_code ignored; path_exists(path_) && !fs::is_regular_file(path_, ignored)) {
    throw ConfigError(
        "{}: is a device or a pipe, which a file must not replace\n"
        "  Give the path of a regular file.",
        path_);
  }
  // A link in the part's place could point anywhere; it is never followed.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  if (!fails_here("open")) {
    do {
      descriptor_ = open(part_path_.c_str(), kFlags, 0666);
    } while (descriptor_ < 0 && errno == EINTR);
  }
  if (descriptor_ < 0) {
    // Messages name the file that a user knows, but for something that lies in the part's place.
    const int code = errno;
    struct stat status {};
    const bool may_be_of_part = code == EISDIR || code == ELOOP || code == EACCES ||
                                code == EPERM || code == ENXIO || code == ETXTBSY;
    const bool is_in_the_way = may_be_of_part && ::lstat(part_path_.c_str(), &status) == 0;
    throw_write_error(is_in_the_way ? part_path_ : path_, "create the file", code);
  }
  part_exists_ = true;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (part_exists_) unlink(part_path_.c_str());
}

void AtomicFile::write(const void* data, size_t size) {
  D2_CHECK(descriptor_ >= 0, "{}: write after commit", path_);
  const char* bytes = static_cast<const char*>(data);
  position_ += size;
  while (size > 0) {
    if (buffered_ == kDiskPieceBytes) flush_buffer();
    const size_t piece = std::min(size, kDiskPieceBytes - buffered_);
    std::memcpy(buffer_.data() + buffered_, bytes, piece);
    buffered_ += piece;
    bytes += piece;
    size -= piece;
  }
}

void AtomicFile::flush_buffer() {
  // Whole buffers alone: the last bytes of a file fill no block.
  const bool direct = direct_ && buffered_ == kDiskPieceBytes;
  if (!set_direct(descriptor_, direct)) direct_ = false;
  write_through(buffer_.data(), buffered_);
  buffered_ = 0;
}

void AtomicFile::write_through(const char* data, size_t size) {
  while (size > 0) {
    const char* spec = std::getenv("DALLE2_FAIL_AT");
    if (spec != nullptr && std::string_view(spec).starts_with("write:")) {
      // A torn write: half of it reaches the file before the failure strikes.
      const off_t before = lseek(descriptor_, 0, SEEK_CUR);
      const ssize_t torn = ::write(descriptor_, data, size / 2);
      if (fails_here("write")) throw_write_error(path_, "write", errno);
      if (torn > 0 && lseek(descriptor_, before, SEEK_SET) < 0) {
        throw_write_error(path_, "write", errno);
      }
    }
    const ssize_t written = ::write(descriptor_, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && direct_) {  // direct calls were promised, and then refused
        direct_ = false;
        set_direct(descriptor_, false);
        continue;
      }
      throw_write_error(path_, "write", errno);
    }
    sign_of_life();
    data += written;
    size -= static_cast<size_t>(written);
    // The rest of a short write may begin anywhere.
    if (size > 0) set_direct(descriptor_, false);
  }
}

void AtomicFile::sync() {
  D2_CHECK(descriptor_ >= 0, "{}: sync after commit", path_);
  flush_buffer();
  if (fails_here("fsync")) throw_write_error(path_, "flush to the disk", errno);
  while (fsync(descriptor_) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == ENOTSUP) {
      return;  // not a file of a disk (a pipe, /dev/full's like): nothing to flush
    }
    throw_write_error(path_, "flush to the disk", errno);
  }
}

void AtomicFile::commit() {
  sync();
  const int closed = close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) throw_write_error(path_, "close", errno);
  if (fails_here("rename") || rename(part_path_.c_str(), path_.c_str()) != 0) {
    throw_write_error(path_, "rename the finished part onto it", errno);
  }
  part_exists_ = false;
  flush_folder_of(path_);
}

void write_file_atomically(const std::string& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

void copy_file_atomically(const std::string& from, const std::string& to) {
  AtomicFile file(to);
  uint32_t wanted = 0, got = 0;
  read_from_disk(from, [&](const char* data, size_t size) {
    wanted = crc32_of(wanted, data, size);
    file.write(data, size);
  });
  file.sync();
  read_from_disk(file.part_path(),
                 [&](const char* data, size_t size) { got = crc32_of(got, data, size); });
  if (got != wanted) throw_write_error(to, "read back what was copied from " + from, EIO);
  file.commit();
}

/// Not every file system has links, and a file can have only so many.
static bool says_no_links(int code) {
  return code == EPERM || code == ENOTSUP || code == EMLINK || code == ENOSYS || code == EXDEV;
}

void link_file_atomically(const std::string& from, const std::string& to) {
  create_folders(parent_folder(to), to);
  const std::string part = to + ".part";
  unlink(part.c_str());
  if (fails_here("link") || link(from.c_str(), part.c_str()) != 0) {
    if (says_no_links(errno)) return copy_file_atomically(from, to);
    throw_write_error(to, "link " + from + " to it", errno);
  }
  const bool failed = fails_here("rename") || rename(part.c_str(), to.c_str()) != 0;
  const int error_number = errno;
  unlink(part.c_str());  // rename leaves it where both are names of one file already
  if (failed) throw_write_error(to, "rename the finished part onto it", error_number);
  flush_folder_of(to);
}

bool link_new_file(const std::string& from, const std::string& to) {
  create_folders(parent_folder(to), to);
  if (!fails_here("link") && link(from.c_str(), to.c_str()) == 0) {
    flush_folder_of(to);
    return true;
  }
  if (errno == EEXIST) return false;
  if (!says_no_links(errno)) throw_write_error(to, "link " + from + " to it", errno);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(to, ignored))) return false;
  copy_file_atomically(from, to);
  return true;
}

void move_path(const std::string& from, const std::string& to) {
  create_folders(parent_folder(to), to);
  if (fails_here("rename") || rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    if (reason != EXDEV || !fs::is_regular_file(from))
      throw_write_error(from, "rename it to " + to, reason);
    copy_file_atomically(from, to);
    remove_file(from);
  }
  flush_folder_of(from);
  flush_folder_of(to);
}

void remove_file(const std::string& path) {
  if (fails_here("unlink") || (unlink(path.c_str()) != 0 && errno != ENOENT)) {
    throw_write_error(path, "remove it", errno);
  }
}

std::string read_file(const std::string& path) {
  const OpenFile file(path);
  std::string content;
  struct stat status {};
  if (fstat(file.descriptor(), &status) == 0 && S_ISREG(status.st_mode)) {
    content.resize(static_cast<size_t>(status.st_size) + 1);  // one more, to see the end
  }
  constexpr size_t kReadBytes = size_t{1} << 18;
  size_t filled = 0;
  while (true) {
    if (filled == content.size()) content.resize(filled + std::max(filled / 2, kReadBytes));
    const size_t got = file.read(content.data() + filled, content.size() - filled);
    if (got == 0) break;
    filled += got;
  }
  content.resize(filled);
  return content;
}

}  // namespace dalle2
