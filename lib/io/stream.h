// SPDX-License-Identifier: MIT
// Byte streams that are pulled: files, and what is packed inside any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace dalle2 {

/// Fills `buffer` with up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws
/// DataError
using ByteSource = std::function<size_t(char* buffer, size_t capacity)>;

/// The bytes of a file from `offset` on. @throws DataError (cannot be opened, ends before the
/// offset), here and when read
ByteSource file_source(const std::string& path, uint64_t offset = 0);

/// The same bytes, inflated if they begin as gzip (one member or several). All that lies before a
/// cut or damage is delivered before the error. @param origin names the stream in errors
ByteSource gunzip_source(ByteSource packed, const std::string& origin);

/// Likewise for gzip, bzip2, xz and zstd.
ByteSource unpack_source(ByteSource packed, const std::string& origin);

}  // namespace dalle2
