// SPDX-License-Identifier: MIT
// What the parsers under test promise, and the file they read from.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace dalle2::test {

/// A promise of a parser that does not hold: no error of ours, so that tests and harnesses notice.
inline void promise(bool holds, const char* text) {
  if (!holds) throw std::logic_error(text);
}

/// A file in memory with a path.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : descriptor_(memfd_create("fuzz", 0)) {
    promise(descriptor_ >= 0, "memfd_create");
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    promise(written == static_cast<ssize_t>(bytes.size()), "write");
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace dalle2::test
