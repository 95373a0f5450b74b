// SPDX-License-Identifier: MIT
// Byte streams that are pulled: files, and packed data inside any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace dalle2 {

/// Fills `buffer` with up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws
/// DataError
using ByteSource = std::function<size_t(char* buffer, size_t capacity)>;

/// The bytes of a file from `offset` on. @throws DataError (cannot be opened, ends before the
/// offset), here and when read
ByteSource file_source(const std::string& path, uint64_t offset = 0);

/// All bytes. @throws DataError if there are more than `most`, which is all that is kept of them
std::string read_source(const ByteSource& source,
                        const std::string& origin,
                        uint64_t most = std::numeric_limits<uint64_t>::max());

/// The same bytes, inflated if they begin as gzip (one member or several). All that lies before a
/// cut or damage is delivered before the error. @param origin names the stream in errors
ByteSource gunzip_source(ByteSource packed, const std::string& origin);

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
