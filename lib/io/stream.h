// SPDX-License-Identifier: MIT
// Byte streams that are pulled: files, and what is packed inside any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dalle2 {

/// Fills `buffer` with up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws
/// DataError
using ByteSource = std::function<size_t(char* buffer, size_t capacity)>;

/// The bytes of a file from `offset` on. @throws DataError (cannot be opened, ends before the
/// offset), here and when read
ByteSource file_source(const std::string& path, uint64_t offset = 0);

/// All bytes.
std::string read_source(const ByteSource& source);

/// The same bytes, inflated if they begin as gzip (one member or several). All that lies before a
/// cut or damage is delivered before the error. @param origin names the stream in errors
ByteSource gunzip_source(ByteSource packed, const std::string& origin);

/// The first bytes of a file that tell how it is packed.
inline constexpr size_t kMagicBytes = 6;
/// True if a file that begins so is gzip, bzip2, xz or zstd.
bool is_packed(std::string_view head);

/// As gunzip_source(), for all of these.
ByteSource unpack_source(ByteSource packed, const std::string& origin);

}  // namespace dalle2
