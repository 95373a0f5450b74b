// SPDX-License-Identifier: MIT
// Files of which a tar holds only the pieces that are not zero (tar --sparse). Internal to lib/io.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/tar_header.h"

namespace dalle2 {

/// A sparse file as its headers describe it.
struct SparseFile {
  uint64_t real_bytes = 0;
  TarPieces pieces;
  bool pieces_in_content = false;  ///< a table of them stands before the content (PAX 1.0)
};

/// @return none for a file that is not sparse, or whose description is damaged: `damaged` tells
std::optional<SparseFile> sparse_file(const TarHeader& header,
                                      const PaxRecords& records,
                                      bool& damaged);

/// Puts the pieces of `stored` to their places. @return none if they do not fit
std::optional<std::string> fill_holes(std::string_view stored, SparseFile file);

}  // namespace dalle2
