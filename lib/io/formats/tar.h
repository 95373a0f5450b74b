// SPDX-License-Identifier: MIT
// Tar streams, plain or compressed, through libarchive.
#pragma once

#include "io/streams/stream.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// A regular file inside a tar.
struct TarMember {
  std::string name;  ///< as stored; a key, never a path
  std::string content;
};

/// What a tar may ask of us.
struct TarLimits {
  uint64_t member_bytes = uint64_t{1} << 30;  ///< the largest member
  uint64_t suspicious_bytes = uint64_t{1}
                              << 30;  ///< unpacked bytes from which the ratio is watched
  double inflate_ratio = 200;         ///< unpacked to packed
};

/// The members of a shard in order, be they in a tar or in files that stand for one.
class MemberSource {
 public:
  virtual ~MemberSource() = default;
  /// @return false at the end. @throws DataError
  virtual bool next(TarMember& member) = 0;
  /// Once next() was false: @throws DataError if the source was not whole
  virtual void check_rest() {}
  /// Where the last member begins: a source opened there starts with it. None if it cannot be.
  virtual std::optional<uint64_t> member_offset() const = 0;
  /// At the end: whether the source says that this is its end.
  virtual bool has_end_marker() const { return true; }
  /// At the end: what of the source is not read, for messages: links, data behind its end. Empty: nothing.
  virtual std::string unread() const { return ""; }
  /// Members so far that are neither files, folders nor links.
  virtual int64_t passed_over() const { return 0; }
};

/// Walks the regular files of a tar in order; folders, links and devices are skipped. ustar,
/// GNU and PAX names of any length. Plain, gzip, bzip2, xz and zstd are recognised by content.
class TarReader : public MemberSource {
 public:
  /// @throws DataError naming the file and the reason
  explicit TarReader(const std::string& path, TarLimits limits = {});
  /// From any stream; `origin` names it in errors. @param first_byte where in the tar the stream
  /// begins: at a member
  TarReader(ByteSource source,
            const std::string& origin,
            TarLimits limits = {},
            uint64_t first_byte = 0);
  ~TarReader() override;
  /// Reads the next regular file. @return false at the end. @throws DataError (truncated, damaged,
  /// too large) naming the file, the last whole member and the offset; the reader is done then
  bool next(TarMember& member) override;
  /// Once next() was false: reads what follows the tar, which tells whether it was whole (the
  /// checksum of gzip, the exit status of a command). @throws DataError if not
  void check_rest() override;
  /// The byte at which the last member begins, its headers with it: a stream opened there continues
  /// with that member. @return none if the tar is packed
  std::optional<uint64_t> member_offset() const override;
  /// At the end: false if the bytes are out after a whole member, without the zero block that ends
  /// a tar. It may have been cut there. Before the end true.
  bool has_end_marker() const override;
  std::string unread() const override;
  int64_t passed_over() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where a regular file of a plain tar lies.
struct TarPlace {
  std::string name;     ///< as stored
  uint64_t offset = 0;  ///< of its first header
};

struct TarList {
  std::vector<TarPlace> places;  ///< in the order of the tar
  std::string fault;             ///< why the list ends before the tar does; empty if it does not
  std::string unread = {};       ///< as MemberSource has it
};

/// Lists the regular files of a plain tar, reading its headers alone. A packed tar has a fault.
TarList list_tar(const std::string& path);
/// Reads the file that list_tar() found at `offset`. @throws DataError
TarMember read_tar_member(const std::string& path, uint64_t offset);

/// Writes a tar, whole or not at all. The same members give the same bytes (ustar, PAX where a name
/// needs it; time 0, owner 0, mode 0644).
class TarWriter {
 public:
  explicit TarWriter(const std::string& path, bool gzip = false);
  ~TarWriter();
  void add(const std::string& name, const std::string& content);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
