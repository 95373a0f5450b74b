// SPDX-License-Identifier: MIT
#include "io/files/disk_io.h"

#include "base/error.h"
#include "base/sign_of_life.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

namespace dalle2 {

DiskBuffer::DiskBuffer()
    : bytes_(static_cast<char*>(std::aligned_alloc(kDiskAlignment, kDiskPieceBytes)), std::free) {
  if (bytes_ == nullptr) throw std::bad_alloc();
}

bool set_direct(int descriptor, bool on) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && fcntl(descriptor, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void read_from_disk(const std::string& path, const std::function<void(const char*, size_t)>& sink) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw DataError("{}: cannot be opened: {}", path, errno_text(errno));
  const std::shared_ptr<void> closer(nullptr, [descriptor](void*) { close(descriptor); });
  bool direct = set_direct(descriptor, true);
  DiskBuffer buffer;
  while (true) {
    const ssize_t got = read(descriptor, buffer.data(), kDiskPieceBytes);
    if (got == 0) return;
    if (got > 0) {
      sign_of_life();
      sink(buffer.data(), static_cast<size_t>(got));
      // Behind a piece of another length the position is no multiple: only the end of the file.
      if (direct && static_cast<size_t>(got) % kDiskAlignment != 0)
        direct = !set_direct(descriptor, false);
    } else if (errno == EINVAL && direct) {
      direct = !set_direct(descriptor, false);  // promised, and then refused
    } else if (errno != EINTR) {
      throw DataError("{}: cannot be read: {}", path, errno_text(errno));
    }
  }
}

uint32_t crc32_of(uint32_t crc, const void* data, size_t size) {
  return size == 0 ? crc : libdeflate_crc32(crc, data, size);  // which takes null for "begin anew"
}

}  // namespace dalle2
