// SPDX-License-Identifier: MIT
// The blocks of a tar: ustar, GNU and PAX headers as Python's tarfile reads them. Internal to
// lib/io.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dalle2 {

inline constexpr size_t kTarBlock = 512;

/// Stored pieces of a sparse file: place in the file and length, bytes.
using TarPieces = std::vector<std::pair<uint64_t, uint64_t>>;

/// One header block.
struct TarHeader {
  std::string name;
  char type = '0';
  uint64_t stored_bytes = 0;  ///< that follow the header
  // Of an old GNU sparse file:
  uint64_t real_bytes = 0;
  TarPieces pieces;
  bool more_pieces = false;  ///< blocks with further ones follow
};

/// A regular file by its type: what else there is has no content that we read.
bool is_tar_file(const TarHeader& header);
/// A link, folder or device of the kinds that tars have held since 1988.
bool is_tar_special(char type);

/// True for a block whose checksum is right. @param block kTarBlock bytes
bool is_tar_header(std::string_view block);
/// @return none if a number is damaged
std::optional<TarHeader> parse_tar_header(std::string_view block);
/// Appends the pieces of a further block. @return true if another one follows, none if damaged
std::optional<bool> append_tar_pieces(std::string_view block, TarPieces& pieces);

/// A PAX header's records. The first record of a name counts, but for GNU.sparse.offset and
/// numbytes, whose values are joined with commas.
using PaxRecords = std::map<std::string, std::string>;
/// @return none if it is damaged
std::optional<PaxRecords> parse_pax(std::string_view content);

/// A whole decimal number of at most 18 digits. @return none for another text
std::optional<uint64_t> decimal(std::string_view text);
/// The text up to its first NUL.
std::string_view until_nul(std::string_view text);

}  // namespace dalle2
