// SPDX-License-Identifier: MIT
// Tar streams, plain or compressed, through libarchive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dalle2 {

/// A regular file inside a tar.
struct TarMember {
  std::string name;     ///< as stored; a key, never a path
  std::string content;
};

/// Walks the regular files of a tar in order. Plain, gzip, xz and zstd are told by content.
class TarReader {
 public:
  /// @throws DataError naming the file and the reason
  explicit TarReader(const std::string& path);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;
  /// Reads the next regular file. @return false at the end. @throws DataError (truncated, damaged)
  bool next(TarMember& member);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a tar, whole or not at all.
class TarWriter {
 public:
  explicit TarWriter(const std::string& path, bool gzip = false);
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;
  void add(const std::string& name, const std::string& content);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
