// SPDX-License-Identifier: MIT
#include "checkpoint/archive/zip_archive.h"

#include "base/little_endian.h"
#include "io/files/disk_io.h"

namespace dalle2 {
namespace {

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

}  // namespace

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
  file_.write(out.data(), out.size());
  member.offset = file_.position();
  file_.write(data, size);
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
  file_.write(out.data(), out.size());
}

}  // namespace dalle2
