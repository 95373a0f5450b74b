// SPDX-License-Identifier: MIT
// Large files without a detour through the page cache (O_DIRECT). That saves a copy of every byte
// and the memory for it, and what is read is what the disk holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dalle2 {

/// Positions, sizes and addresses of direct calls are multiples of this: the page size, which every
/// disk's block divides.
constexpr size_t kDiskAlignment = 4096;
/// Bytes of a direct call: enough to keep a disk busy though one call waits for the other.
constexpr size_t kDiskPieceBytes = size_t{1} << 22;

/// kDiskPieceBytes at an aligned address; what is never touched takes no memory.
class DiskBuffer {
 public:
  DiskBuffer();
  char* data() { return bytes_.get(); }
  const char* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<char, void (*)(void*)> bytes_;
};

/// Switches direct calls of an open file on or off. @return false where the file system has none
bool set_direct(int descriptor, bool on);

/// A file that is open for reading until its end of scope.
class OpenFile {
 public:
  /// @throws DataError naming the path and the reason, here and when read; ResourceError if too many files are open, or memory is short
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  /// The next bytes. @return how many, 0 at the end
  size_t read(char* to, size_t capacity) const;
  [[noreturn]] void fail_to_read(int error_number) const;

 private:
  std::string path_;
  int descriptor_;
};

/// A new file that grows by whole records: a reader stops at a torn one.
class RecordFile {
 public:
  /// @throws ConfigError if there is such a file, or it cannot be made
  explicit RecordFile(std::string path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  /// Hands all of it to the system or nothing: a kill of the process loses none. @throws ResourceError
  void append(std::string_view record);

 private:
  std::string path_;
  int descriptor_;
  int64_t size_ = 0;
};

/// Hands the file to `sink` piece by piece, in order, from the disk itself where the file system
/// can do that.
/// @throws DataError naming the path and the reason
void read_from_disk(const std::string& path, const std::function<void(const char*, size_t)>& sink);

/// CRC-32 (of zip, gzip, png) of `size` bytes that follow those whose checksum is `crc`, 0 at the
/// beginning.
uint32_t crc32_of(uint32_t crc, const void* data, size_t size);

/// Test hook: DALLE2_FAIL_AT="<call>:<n>:<abort|eio|enospc>", the call being open, write, fsync,
/// rename, mkdir, dirsync, link, unlink, flock or readdir (one step of a listing),
/// makes the n-th such call of the process (from 1) fail with that errno, or ends the process at
/// that moment as kill -9 would (exit status 137; a write is torn in the middle). Calls are counted
/// from the moment the variable takes its value.
/// To be asked at the beginning of each call of the kind `operation`: true if the call is to fail
/// now, with errno set. Does not return for `abort`.
bool fails_here(std::string_view operation);

}  // namespace dalle2
