// SPDX-License-Identifier: MIT
// The last step of every fetch: bytes of a network become a file that is whole and the right one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/streams/stream.h"
#include "net/http_stream.h"

namespace dalle2 {

/// What a file has to be, as far as that is known.
struct ExpectedFile {
  std::optional<uint64_t> bytes = {};
  std::optional<std::string> sha256 = {};  ///< hexadecimal digits
  std::string md5_base64 = {};             ///< empty: not known
};

/// Stores all bytes of `source` at `path`, and compares them with what is expected before the file
/// is there.
/// @param name the address without its secrets, for messages and the log
/// @throws DataError another size or hash; ResourceError (disk); what `source` throws
void store_fetched(const ByteSource& source,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name);

/// The same for the body of a GET, which continues where it was cut.
void store_fetched(HttpGet request,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name);

}  // namespace dalle2
