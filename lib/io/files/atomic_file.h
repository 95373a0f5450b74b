// SPDX-License-Identifier: MIT
// Files that are whole or absent.
// Each of their calls can be made to fail for tests: fails_here().
#pragma once

#include "io/files/disk_io.h"

#include <cstdint>
#include <string>

namespace dalle2 {

/// Writes `path.part`. commit() makes it durable as `path`: fsync, rename, fsync of the folder. If
/// the object is destroyed before commit(), the part is removed and an older `path` stays as it
/// was. Content larger than the buffer bypasses the page cache if the file system supports that.
class AtomicFile {
 public:
  /// Creates missing parent folders. @throws ConfigError (the path is a device, a pipe or a
  /// socket), DiskFullError (or over quota), ResourceError (the disk fails), DataError (cannot be written:
  /// permission, a folder in the way, read-only)
  explicit AtomicFile(std::string path);
  ~AtomicFile();

  /// Appends through a buffer. @throws as the constructor
  void write(const void* data, size_t size);
  uint64_t position() const { return position_; }
  /// The name of the part, for readers that verify it before commit().
  const std::string& part_path() const { return part_path_; }
  /// Flushes to the disk without renaming (so that the part can be read back).
  void sync();
  /// Flushes, renames onto `path` and flushes the folder; nothing can be written afterwards.
  void commit();

 private:
  void flush_buffer();
  void write_through(const char* data, size_t size);

  std::string path_, part_path_;
  DiskBuffer buffer_;
  size_t buffered_ = 0;
  bool direct_ = true;  ///< as long as nothing speaks against it
  int descriptor_ = -1;
  bool part_exists_ = false;
  uint64_t position_ = 0;
};

/// The whole file as an AtomicFile.
void write_file_atomically(const std::string& path, const std::string& content);
/// Copies a file onto `to`, whole or not at all: the copy is read back before it takes the place of
/// an older file. Parent folders are created. @throws as AtomicFile
void copy_file_atomically(const std::string& from, const std::string& to);
/// Makes `to` a second name of the file `from`, replacing what `to` was, at no cost of time and
/// space; a copy where there can be no link (another file system). Parent folders are created.
/// @throws as AtomicFile
void link_file_atomically(const std::string& from, const std::string& to);
/// Makes `to`, where nothing may be, a second name of the file `from`; a copy on another file system.
/// Parent folders are created. @return false if something is there, which stays as it is
/// @throws as AtomicFile
bool link_new_file(const std::string& from, const std::string& to);
/// rename(2) of a file or a folder, and both folders above are flushed. The new one is created. A file
/// that goes to another file system is copied, then removed.
/// @throws as AtomicFile
void move_path(const std::string& from, const std::string& to);
/// Removes a file. It is not an error if the file is already gone. @throws as AtomicFile
void remove_file(const std::string& path);
/// The whole file. @throws DataError naming the path and the reason
std::string read_file(const std::string& path);

}  // namespace dalle2
