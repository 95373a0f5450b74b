// SPDX-License-Identifier: MIT
#include "checkpoint/archive/zip_archive.h"

#include "base/error.h"
#include "base/little_endian.h"
#include "base/text.h"
#include "io/files/disk_io.h"

#include <ATen/Parallel.h>
#include <zlib.h>

#include <algorithm>
#include <new>
#include <optional>
#include <unordered_set>

namespace dalle2 {
namespace {

// Field offsets from PKWARE's APPNOTE 6.3, sections 4.3.7 (local header), 4.3.12 (directory),
// 4.3.14 to 4.3.16 (its end).
constexpr uint32_t kLocalSignature = 0x04034b50, kDirectorySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                   kLocator64Signature = 0x07064b50;
constexpr uint64_t kDirectoryBytes = 46, kEndBytes = 22, kLocatorBytes = 20;
constexpr uint64_t kMaxComment = 65535;
constexpr uint16_t kEncrypted = 1, kDataDescriptor = 8;
constexpr uint64_t kStoredMethod = 0, kDeflateMethod = 8;
constexpr uint64_t kMostDeflatedBytes = uint64_t{1} << 26;  // it is the code of a network

class ZipReader {
 public:
  ZipReader(const MappedFile& file, Packing packing) : file_(file), packing_(packing) {}

  std::vector<ZipMember> run() {
    find_directory();
    std::unordered_set<std::string> names;
    uint64_t at = directory_begin_;
    for (uint64_t i = 0; i < count_; ++i) {
      at = read_entry(at);
      if (!names.insert(members_.back().name).second) {
        fail("member '" + members_.back().name + "' occurs twice");
      }
    }
    if (at != directory_end_) fail("its directory has another length than stated");
    check_overlaps();
    return std::move(members_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError("{}: damaged archive: {}{}", file_.path(), reason, kDamagedAdvice);
  }

  std::string_view part(uint64_t at, uint64_t size) const {
    if (at > file_.size() || size > file_.size() - at) fail("cut off");
    return file_.bytes(at, size);
  }

  uint64_t number(uint64_t at, size_t width) const { return from_little_endian(part(at, width)); }

  /// The end record is at the very end, before a comment of the stated length.
  uint64_t find_end() const {
    if (file_.size() < kEndBytes) fail("cut off");
    const uint64_t lowest = file_.size() - std::min(file_.size(), kEndBytes + kMaxComment);
    for (uint64_t at = file_.size() - kEndBytes + 1; at-- > lowest;) {
      if (number(at, 4) == kEndSignature && at + kEndBytes + number(at + 20, 2) == file_.size()) {
        return at;
      }
    }
    fail("no directory at its end: it is cut off, or other bytes follow");
  }

  void find_directory() {
    const uint64_t end = find_end();
    count_ = number(end + 10, 2);
    uint64_t size = number(end + 12, 4);
    directory_begin_ = number(end + 16, 4);
    directory_end_ = end;
    if (number(end + 4, 4) != 0 || number(end + 8, 2) != count_) fail("it is one part of several");
    if (end >= kLocatorBytes && number(end - kLocatorBytes, 4) == kLocator64Signature) {
      const uint64_t end64 = number(end - kLocatorBytes + 8, 8);
      if (number(end64, 4) != kEnd64Signature) fail("no zip64 record where one is stated");
      count_ = number(end64 + 32, 8);
      size = number(end64 + 40, 8);
      directory_begin_ = number(end64 + 48, 8);
      directory_end_ = end64;
    }
    if (directory_begin_ > directory_end_ || directory_end_ - directory_begin_ != size ||
        count_ > size / kDirectoryBytes) {
      fail("its directory is not where it should be");
    }
  }

  /// A directory entry and its local header. @return where the next entry begins
  uint64_t read_entry(uint64_t at) {
    if (number(at, 4) != kDirectorySignature) fail("a directory entry expected");
    const uint64_t flags = number(at + 8, 2), method = number(at + 10, 2);
    const uint64_t name_bytes = number(at + 28, 2), extra_bytes = number(at + 30, 2);
    ZipMember member;
    member.crc = static_cast<uint32_t>(number(at + 16, 4));
    member.packed_size = number(at + 20, 4);
    member.size = number(at + 24, 4);
    uint64_t header = number(at + 42, 4);
    member.name = part(at + kDirectoryBytes, name_bytes);
    read_zip64(at + kDirectoryBytes + name_bytes,
               extra_bytes,
               {&member.size, &member.packed_size, &header});
    const bool may_be_deflated = packing_ == Packing::kStoredOrDeflated;
    member.is_deflated = may_be_deflated && method == kDeflateMethod &&
                         std::max(member.size, member.packed_size) <= kMostDeflatedBytes;
    const bool is_stored = method == kStoredMethod && member.packed_size == member.size;
    if (!(is_stored || member.is_deflated) || (flags & kEncrypted) != 0) {
      throw DataError(
          "{}: member '{}', of {}, is compressed or encrypted: expected plain members{}, as "
          "torch.save() writes them. Unpack the file and pack it again with `zip -0`",
          file_.path(),
          member.name,
          human_bytes(member.size),
          may_be_deflated
              ? ", or compressed ones of " + human_bytes(kMostDeflatedBytes) + " at most"
              : "");
    }
    check_local(member, header, flags);
    members_.push_back(std::move(member));
    return at + kDirectoryBytes + name_bytes + extra_bytes + number(at + 32, 2);
  }

  /// The fields that are all ones in the header follow in the zip64 field, in this order.
  void read_zip64(uint64_t at, uint64_t size, const std::vector<uint64_t*>& fields) const {
    const uint64_t end = at + size;
    while (at + 4 <= end) {
      const uint64_t id = number(at, 2), field_bytes = number(at + 2, 2);
      at += 4;
      if (id == kZip64Field) {
        uint64_t value_at = at;
        for (uint64_t* field : fields) {
          if (*field == UINT32_MAX) {
            *field = number(value_at, 8);
            value_at += 8;
          }
        }
        return;
      }
      at += field_bytes;
    }
  }

  void check_local(ZipMember& member, uint64_t header, uint64_t flags) {
    if (number(header, 4) != kLocalSignature || number(header + 6, 2) != flags ||
        number(header + 8, 2) != (member.is_deflated ? kDeflateMethod : kStoredMethod)) {
      fail("member '" + member.name + "' has no header where the directory states one");
    }
    const uint64_t name_bytes = number(header + 26, 2), extra_bytes = number(header + 28, 2);
    uint64_t size = number(header + 22, 4), packed = number(header + 18, 4);
    read_zip64(header + kZipLocalBytes + name_bytes, extra_bytes, {&size, &packed});
    const bool later = (flags & kDataDescriptor) != 0;  // sizes and CRC follow the content
    const bool same = later || (size == member.size && packed == member.packed_size &&
                                number(header + 14, 4) == member.crc);
    if (!same || part(header + kZipLocalBytes, name_bytes) != member.name) {
      fail("the two headers of member '" + member.name + "' differ");
    }
    member.offset = header + kZipLocalBytes + name_bytes + extra_bytes;
    if (member.offset > directory_begin_ || member.packed_size > directory_begin_ - member.offset) {
      fail("member '" + member.name + "' reaches into the directory");
    }
  }

  void check_overlaps() const {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const ZipMember& member : members_) {
      ranges.emplace_back(member.offset, member.offset + member.packed_size);
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].first < ranges[i - 1].second) fail("members overlap");
    }
  }

  const MappedFile& file_;
  const Packing packing_;
  uint64_t directory_begin_ = 0, directory_end_ = 0, count_ = 0;
  std::vector<ZipMember> members_;
};

constexpr uint64_t kAlignment = 64;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kPaddingField = 0x4246;  // "FB", the padding of torch's own writer
constexpr uint16_t kPlainVersion = 20, kZip64Version = 45;
constexpr uint16_t kFirstDate = 0x21;  // 1980-01-01: equal checkpoints are equal files

uint64_t or_all_ones(uint64_t value) {
  return value >= UINT32_MAX ? UINT32_MAX : value;
}

/// The fields that both headers share, from "version needed" to the length of the name.
void put_common(std::string& out, const ZipMember& member, bool zip64) {
  append_little_endian(out, zip64 ? kZip64Version : kPlainVersion, 2);
  append_little_endian(out, kUtf8Names, 2);
  append_little_endian(out, 0, 2);  // stored
  append_little_endian(out, 0, 2);
  append_little_endian(out, kFirstDate, 2);
  append_little_endian(out, member.crc, 4);
  append_little_endian(out, or_all_ones(member.size), 4);
  append_little_endian(out, or_all_ones(member.size), 4);
  append_little_endian(out, member.name.size(), 2);
}

/// The CRC-32 of what a deflated member unpacks to; none if it does not unpack to its stated size.
std::optional<uint32_t> crc_of_deflated(const MappedFile& file, const ZipMember& member) {
  constexpr int kRawDeflate = -MAX_WBITS;
  z_stream stream{};
  if (inflateInit2(&stream, kRawDeflate) != Z_OK) throw std::bad_alloc();
  std::vector<uint8_t> content(member.size + 1);  // one more byte tells of what is longer
  stream.next_in = const_cast<uint8_t*>(file.data() + member.offset);
  stream.avail_in = static_cast<uInt>(member.packed_size);
  stream.next_out = content.data();
  stream.avail_out = static_cast<uInt>(content.size());
  const bool is_all = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_in == 0 &&
                      stream.total_out == member.size;
  inflateEnd(&stream);
  return is_all ? std::optional(crc32_of(0, content.data(), member.size)) : std::nullopt;
}

}  // namespace

bool looks_like_zip(const MappedFile& file) {
  return file.bytes(0, file.size()).starts_with("PK\x03\x04");
}

std::vector<ZipMember> read_zip_directory(const MappedFile& file) {
  return ZipReader(file, Packing::kStored).run();
}

std::vector<uint32_t> content_crcs(const MappedFile& file, const std::vector<ZipMember>& members) {
  std::vector<uint32_t> crcs(members.size());
  at::parallel_for(0, static_cast<int64_t>(members.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ZipMember& member = members[static_cast<size_t>(i)];
      crcs[static_cast<size_t>(i)] =
          member.is_deflated
              ? crc_of_deflated(file, member).value_or(~member.crc)  // whatever is not right
              : crc32_of(0, file.data() + member.offset, member.size);
    }
  });
  return crcs;
}

std::vector<ZipMember> read_zip(const MappedFile& file, Packing packing) {
  std::vector<ZipMember> members = ZipReader(file, packing).run();
  const std::vector<uint32_t> crcs = content_crcs(file, members);
  for (size_t i = 0; i < members.size(); ++i) {
    if (crcs[i] != members[i].crc) {
      throw DataError(
          "{}: damaged archive: the content of member '{}' does not fit its CRC-32: expected "
          "{:08x}, got {:08x}{}",
          file.path(),
          members[i].name,
          members[i].crc,
          crcs[i],
          kDamagedAdvice);
    }
  }
  return members;
}

void ZipWriter::add(const std::string& name, const void* data, uint64_t size) {
  ZipMember member;
  member.name = name;
  member.size = size;
  member.crc = crc32_of(0, data, size);
  std::string extra;
  if (size >= UINT32_MAX) {
    append_little_endian(extra, kZip64Field, 2);
    append_little_endian(extra, 16, 2);
    append_little_endian(extra, size, 8);
    append_little_endian(extra, size, 8);
  }
  const uint64_t header = file_.position();
  const uint64_t unpadded = header + kZipLocalBytes + name.size() + extra.size() + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  append_little_endian(extra, kPaddingField, 2);
  append_little_endian(extra, padding, 2);
  extra.append(padding, 'Z');

  std::string out = "PK\x03\x04";
  put_common(out, member, size >= UINT32_MAX);
  append_little_endian(out, extra.size(), 2);
  out += name + extra;
  put(out);
  member.offset = file_.position();
  file_.write(data, size);
  crc_ = static_cast<uint32_t>(crc32_combine(crc_, member.crc, static_cast<z_off_t>(size)));
  members_.push_back(std::move(member));
  header_offsets_.push_back(header);
}

void ZipWriter::finish() {
  const uint64_t begin = file_.position();
  std::string out;
  for (size_t i = 0; i < members_.size(); ++i) {
    const ZipMember& member = members_[i];
    std::string zip64;
    if (member.size >= UINT32_MAX) {
      append_little_endian(zip64, member.size, 8);
      append_little_endian(zip64, member.size, 8);
    }
    if (header_offsets_[i] >= UINT32_MAX) append_little_endian(zip64, header_offsets_[i], 8);
    out += "PK\x01\x02";
    append_little_endian(out, zip64.empty() ? kPlainVersion : kZip64Version, 2);
    put_common(out, member, !zip64.empty());
    append_little_endian(out, zip64.empty() ? 0 : zip64.size() + 4, 2);
    out.append(10, '\0');  // comment, disk, attributes
    append_little_endian(out, or_all_ones(header_offsets_[i]), 4);
    out += member.name;
    if (!zip64.empty()) {
      append_little_endian(out, kZip64Field, 2);
      append_little_endian(out, zip64.size(), 2);
      out += zip64;
    }
  }
  const uint64_t size = out.size(), count = members_.size(), end = begin + size;
  if (count >= UINT16_MAX || end >= UINT32_MAX) {
    out += "PK\x06\x06";
    append_little_endian(out, 44, 8);
    append_little_endian(out, kZip64Version, 2);
    append_little_endian(out, kZip64Version, 2);
    append_little_endian(out, 0, 8);  // disks
    append_little_endian(out, count, 8);
    append_little_endian(out, count, 8);
    append_little_endian(out, size, 8);
    append_little_endian(out, begin, 8);
    out += "PK\x06\x07";
    append_little_endian(out, 0, 4);
    append_little_endian(out, end, 8);
    append_little_endian(out, 1, 4);
  }
  out += "PK\x05\x06";
  append_little_endian(out, 0, 4);
  append_little_endian(out, count >= UINT16_MAX ? UINT16_MAX : count, 2);
  append_little_endian(out, count >= UINT16_MAX ? UINT16_MAX : count, 2);
  append_little_endian(out, or_all_ones(size), 4);
  append_little_endian(out, or_all_ones(begin), 4);
  append_little_endian(out, 0, 2);
  put(out);
}

void ZipWriter::put(const std::string& bytes) {
  file_.write(bytes.data(), bytes.size());
  crc_ = crc32_of(crc_, bytes.data(), bytes.size());
}

}  // namespace dalle2
