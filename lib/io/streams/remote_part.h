// SPDX-License-Identifier: MIT
// A part of a file that lies behind http(s)://, s3:// or hf://.
#pragma once

#include <cstdint>
#include <string>

namespace dalle2 {

struct RemotePart {
  std::string bytes;       ///< fewer than asked for only at the end of the file
  uint64_t file_size = 0;  ///< bytes of the whole file
  /// What the server says of the file's state: its ETag, without one its Last-Modified; may be empty.
  std::string state = {};
};

/// The bytes [from, from + size) of a file, fetched alone (by Range). A server that knows no ranges
/// sends the whole file, of which no more than kMostWholeFile is taken. Failures of the network are
/// tried again as http_call() does.
/// @param size above 0 @throws NetworkError, StoppedError, ConfigError (a login that is half there)
RemotePart fetch_part(const std::string& url, uint64_t from, uint64_t size);

inline constexpr uint64_t kMostWholeFile = uint64_t{1} << 28;

}  // namespace dalle2
