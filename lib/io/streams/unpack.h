// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "io/streams/stream.h"

namespace dalle2 {

/// Length of the longest mark that packed data begins with.
inline constexpr size_t kPackingMagicBytes = 6;

/// The kinds of packed data that unpacked_source() knows: "bzip2", "xz", "zstd"; empty for others.
/// @param begin the first bytes of the data, kPackingMagicBytes or all
std::string packing_of(const std::string& begin);

/// Unpacks what is bzip2, xz or zstd by its first bytes and passes on what is not. Its end comes
/// only after all checksums were right. @param origin names it in errors
/// @throws DataError (damaged or cut off), when read
ByteSource unpacked_source(ByteSource packed, const std::string& origin);

}  // namespace dalle2
