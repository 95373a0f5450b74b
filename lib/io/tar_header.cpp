// SPDX-License-Identifier: MIT
#include "io/tar_header.h"

#include <algorithm>
#include <cstring>

namespace dalle2 {
namespace {

/// Octal digits between spaces, or 256-based after a byte of 0x80. @return none if damaged,
/// negative or beyond 2^63
std::optional<uint64_t> tar_number(std::string_view field) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(field[i]); };
  uint64_t value = 0;
  if (byte(0) >= 0x80) {
    for (size_t i = 1; i < field.size(); ++i) {
      if (byte(0) != 0x80 || value >> 55 != 0) {
        return std::nullopt;
      }
      value = value << 8 | byte(i);
    }
    return value;
  }
  field = until_nul(field);
  const size_t first = std::min(field.find_first_not_of(" \t"), field.size());
  size_t at = first;
  for (; at < field.size() && field[at] >= '0' && field[at] <= '7'; ++at) {
    value = value << 3 | static_cast<uint64_t>(field[at] - '0');
  }
  const bool rest_is_space = field.find_first_not_of(" \t\r\n", at) == std::string_view::npos;
  return rest_is_space ? std::optional<uint64_t>(value) : std::nullopt;
}

/// @return false if damaged
bool append_pieces(std::string_view table, TarPieces& pieces) {
  constexpr size_t kNumber = 12;
  for (; table.size() >= 2 * kNumber; table.remove_prefix(2 * kNumber)) {
    const auto begin = tar_number(table.substr(0, kNumber));
    const auto size = tar_number(table.substr(kNumber, kNumber));
    if (!begin || !size) {
      return false;
    }
    if (*begin != 0 || *size != 0) {
      pieces.emplace_back(*begin, *size);
    }
  }
  return true;
}

}  // namespace

std::string_view until_nul(std::string_view text) {
  return text.substr(0, text.find('\0'));
}

std::optional<uint64_t> decimal(std::string_view text) {
  if (text.empty() || text.size() > 18) {
    return std::nullopt;
  }
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      return std::nullopt;
    }
    value = 10 * value + static_cast<uint64_t>(c - '0');
  }
  return value;
}

bool is_tar_file(const TarHeader& header) {
  switch (header.type) {
    case '0':
    case '7':  // "contiguous"
    case 'S':  // GNU sparse
      return true;
    case '\0':  // before 1988 a slash at the end marked a folder
      return !header.name.ends_with('/');
    default:
      return false;
  }
}

bool is_tar_special(char type) {
  return type == '\0' || (type >= '1' && type <= '6');
}

bool is_tar_header(std::string_view block) {
  constexpr size_t kSumBegin = 148, kSumEnd = 156;
  const auto stored = tar_number(block.substr(kSumBegin, kSumEnd - kSumBegin));
  if (!stored) {
    return false;
  }
  int64_t sum = 8 * ' ', signed_sum = 8 * ' ';  // old programs added signed bytes
  for (size_t i = 0; i < kTarBlock; ++i) {
    if (i < kSumBegin || i >= kSumEnd) {
      sum += static_cast<unsigned char>(block[i]);
      signed_sum += static_cast<signed char>(block[i]);
    }
  }
  const int64_t wanted = static_cast<int64_t>(*stored);
  return wanted == sum || wanted == signed_sum;
}

std::optional<TarHeader> parse_tar_header(std::string_view block) {
  const auto size = tar_number(block.substr(124, 12));
  if (!size) {
    return std::nullopt;
  }
  TarHeader header;
  header.name = until_nul(block.substr(0, 100));
  header.type = block[156];
  header.stored_bytes = *size;
  if (header.type == 'S') {
    const auto real = tar_number(block.substr(483, 12));
    if (!real || !append_pieces(block.substr(386, 4 * 24), header.pieces)) {
      return std::nullopt;
    }
    header.real_bytes = *real;
    header.more_pieces = block[482] != '\0';
    return header;
  }
  const std::string_view prefix = until_nul(block.substr(345, 155));
  // "ustar " is GNU's, which keeps other things in the prefix's place.
  if (!prefix.empty() && block.substr(257, 6) == std::string_view("ustar\0", 6)) {
    header.name = std::string(prefix) + "/" + header.name;
  }
  return header;
}

std::optional<bool> append_tar_pieces(std::string_view block, TarPieces& pieces) {
  if (!append_pieces(block.substr(0, 21 * 24), pieces)) {
    return std::nullopt;
  }
  return block[504] != '\0';
}

std::optional<PaxRecords> parse_pax(std::string_view content) {
  PaxRecords records;
  while (!content.empty() && content[0] != '\0') {
    const size_t space = content.find(' ');
    const auto length = decimal(content.substr(0, space));
    if (space == std::string_view::npos || !length || *length > content.size() ||
        *length < space + 2 || content[*length - 1] != '\n') {
      return std::nullopt;
    }
    const std::string_view record = content.substr(space + 1, *length - space - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return std::nullopt;
    }
    const std::string key(record.substr(0, equals));
    const std::string_view value = record.substr(equals + 1);
    const auto [place, is_new] = records.emplace(key, value);
    if (!is_new && (key == "GNU.sparse.offset" || key == "GNU.sparse.numbytes")) {
      place->second.append(",").append(value);
    }
    content.remove_prefix(*length);
  }
  return records;
}

}  // namespace dalle2
