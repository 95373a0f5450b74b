// SPDX-License-Identifier: MIT
// Zip archives of plain (stored) members, as torch.save() makes them; zip64 where they need it.
#pragma once

#include "checkpoint/archive/mapped_file.h"
#include "io/files/atomic_file.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

/// Bytes of a member's own header, without its name and extra fields (PKWARE APPNOTE, section
/// 4.3.7).
inline constexpr uint64_t kZipLocalBytes = 30;
/// Number of the extra field that holds sizes and offsets beyond 32 bits (section 4.5.3).
inline constexpr uint16_t kZip64Field = 1;

struct ZipMember {
  std::string name;
  uint64_t offset = 0;       ///< of the first byte of content in the file
  uint64_t size = 0;         ///< of the content
  uint32_t crc = 0;          ///< of the content
  uint64_t packed_size = 0;  ///< bytes in the file; those of the content where it is not compressed
  bool is_deflated = false;
};

/// Whether members may be compressed: torch.jit.save() deflates the code of a network.
enum class Packing { kStored, kStoredOrDeflated };

/// The members of an archive, checked: both headers of a member agree, nothing overlaps, every name
/// appears once, and the CRC-32 of every member is right.
/// @throws DataError; encrypted members are refused too, and compressed ones unless `packing` allows
/// them
std::vector<ZipMember> read_zip(const MappedFile& file, Packing packing = Packing::kStored);

/// The same without looking at the contents, and then the CRC-32 that each content really has, in
/// the order of the members: for whoever wants to know everything that is damaged.
std::vector<ZipMember> read_zip_directory(const MappedFile& file);
std::vector<uint32_t> content_crcs(const MappedFile& file, const std::vector<ZipMember>& members);

/// Whether the file begins as an archive does.
bool looks_like_zip(const MappedFile& file);

/// Appends members to an AtomicFile. The caller commits it.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  /// Content begins at a multiple of 64 bytes.
  void add(const std::string& name, const void* data, uint64_t size);
  void add(const std::string& name, std::string_view text) { add(name, text.data(), text.size()); }
  /// Writes the directory.
  void finish();
  const std::vector<ZipMember>& members() const { return members_; }
  /// CRC-32 of all that was written.
  uint32_t crc() const { return crc_; }

 private:
  void put(const std::string& bytes);

  AtomicFile& file_;
  std::vector<ZipMember> members_;
  std::vector<uint64_t> header_offsets_;
  uint32_t crc_ = 0;
};

}  // namespace dalle2
