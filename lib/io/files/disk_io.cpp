// SPDX-License-Identifier: MIT
#include "io/files/disk_io.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/this_process.h"
#include "base/untrusted_text.h"

namespace dalle2 {

DiskBuffer::DiskBuffer()
    : bytes_(static_cast<char*>(std::aligned_alloc(kDiskAlignment, kDiskPieceBytes)), std::free) {
  if (bytes_ == nullptr) throw std::bad_alloc();
}

bool set_direct(int descriptor, bool on) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && fcntl(descriptor, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

OpenFile::OpenFile(std::string path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ >= 0) return;
  const int error_number = errno;
  const std::string shown = printable(path_);
  if (error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM) {
    throw ResourceError(
        "{}: cannot be opened: {}{}",
        shown,
        errno_text(error_number),
        error_number == EMFILE ? "\n  `ulimit -n` shows the limit of open files." : "");
  }
  throw DataError("{}: cannot be opened: {}", shown, errno_text(error_number));
}

OpenFile::~OpenFile() {
  close(descriptor_);
}

void OpenFile::fail_to_read(int error_number) const {
  throw DataError("{}: cannot be read: {}", printable(path_), errno_text(error_number));
}

size_t OpenFile::read(char* to, size_t capacity) const {
  while (true) {
    const ssize_t got = ::read(descriptor_, to, capacity);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) fail_to_read(errno);
  }
}

RecordFile::RecordFile(std::string path)
    : path_(std::move(path)),
      descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw ConfigError("{}: cannot be made: {}", path_, errno_text(errno));
}

RecordFile::~RecordFile() {
  close(descriptor_);
}

void RecordFile::append(std::string_view record) {
  for (std::string_view rest = record; !rest.empty();) {
    const ssize_t count = write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      const bool is_whole = rest.size() == record.size() || ftruncate(descriptor_, size_) == 0;
      throw ResourceError("{}: cannot be written: {}{}",
                          path_,
                          errno_text(reason),
                          is_whole ? "" : "; what follows in this file will not be read");
    }
    rest.remove_prefix(static_cast<size_t>(count));
  }
  size_ += static_cast<int64_t>(record.size());
}

void read_from_disk(const std::string& path, const std::function<void(const char*, size_t)>& sink) {
  const OpenFile file(path);
  bool direct = set_direct(file.descriptor(), true);
  DiskBuffer buffer;
  while (true) {
    const ssize_t got = read(file.descriptor(), buffer.data(), kDiskPieceBytes);
    if (got == 0) return;
    if (got > 0) {
      sign_of_life();
      sink(buffer.data(), static_cast<size_t>(got));
      // Behind a piece of another length the position is no multiple: only the end of the file.
      if (direct && static_cast<size_t>(got) % kDiskAlignment != 0)
        direct = !set_direct(file.descriptor(), false);
    } else if (errno == EINVAL && direct) {
      direct = !set_direct(file.descriptor(), false);  // promised, and then refused
    } else if (errno != EINTR) {
      file.fail_to_read(errno);
    }
  }
}

uint32_t crc32_of(uint32_t crc, const void* data, size_t size) {
  return size == 0 ? crc : libdeflate_crc32(crc, data, size);  // which takes null for "start over"
}

bool fails_here(std::string_view operation) {
  constexpr int kKilledStatus = 137;  // what a shell reports after kill -9
  const char* text = std::getenv("DALLE2_FAIL_AT");
  if (text == nullptr) return false;
  static std::mutex mutex;  // guards the next two, which are of the whole process
  static std::string spec;
  static int64_t calls = 0;
  const std::lock_guard lock(mutex);
  if (spec != text) {
    spec = text;
    calls = 0;
  }
  if (!spec.starts_with(fmt::format("{}:", operation))) return false;
  char* end = nullptr;
  const int64_t at = std::strtoll(spec.c_str() + operation.size() + 1, &end, 10);
  if (++calls != at || *end != ':') return false;
  const std::string_view action = end + 1;
  if (action == "abort") _exit(kKilledStatus);
  if (action != "eio" && action != "enospc") return false;
  errno = action == "eio" ? EIO : ENOSPC;
  return true;
}

}  // namespace dalle2
