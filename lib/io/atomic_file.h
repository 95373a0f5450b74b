// SPDX-License-Identifier: MIT
// Files that are whole or absent.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dalle2 {

/// Writes `path` aside as `path.part`, then fsync, rename, fsync of the folder. An object that is
/// destroyed before commit() removes the part and leaves an older `path` as it was.
class AtomicFile {
 public:
  /// Creates missing parent folders. @throws ResourceError (disk full), DataError (cannot be written)
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  /// Bytes written so far.
  uint64_t position() const { return position_; }
  /// The name of the part, for readers that verify it before commit().
  const std::string& part_path() const { return part_path_; }
  /// Flushes to the disk without renaming (so that the part can be read back).
  void sync();
  void commit();

 private:
  std::string path_, part_path_;
  int descriptor_ = -1;
  uint64_t position_ = 0;
};

/// The whole file as an AtomicFile.
void write_file_atomically(const std::string& path, const std::string& content);
/// Copies a file onto `to`, whole or not at all; parent folders are created.
void copy_file_atomically(const std::string& from, const std::string& to);
/// The whole file. @throws DataError naming the path and the reason
std::string read_file(const std::string& path);
/// Removes `*.part` files below `folder` that an interrupted run left. @return how many
int sweep_parts(const std::string& folder);

}  // namespace dalle2
