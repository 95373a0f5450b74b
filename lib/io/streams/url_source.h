// SPDX-License-Identifier: MIT
// Bytes from wherever a url points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/streams/stream.h"
#include "net/http_transfer.h"
#include "net/url.h"

namespace dalle2 {

/// True for a path or a `file:` url.
bool is_local_url(const std::string& url);
/// The path of a local url: without `file:` or `file://`.
std::string local_path(const std::string& url);

/// What stands after the last slash of a url's path, without query and fragment; of a command,
/// after its last slash. It tells shards apart and may hold a command's secrets: it is not to be
/// shown.
std::string url_file_name(const std::string& url);

/// The GET of a file behind http(s)://, s3:// or hf://; none for other places.
/// @throws ConfigError (a url that names no file, a login that is half there)
std::optional<HttpGet> remote_request(const std::string& url);

struct SourceOptions {
  uint64_t offset = 0;      ///< byte to begin at; an error if the source ends before it
  bool allow_pipe = false;  ///< `pipe:` runs its command: whoever named the url may do that
  HttpOptions http = {};
};

/// The bytes at an url: a path, `file:PATH`, `http://` and `https://` (HttpStream),
/// `s3://BUCKET/KEY`, `hf://OWNER/NAME/FILE` (HubUrl), or `pipe:COMMAND`, the output of a shell command whose failure is a DataError
/// at the end of it (status 141, a closed pipe, is none). Files are sought, http asks for a range,
/// of a command what comes before the offset is read and skipped.
/// @throws DataError (no such file, no such command), ConfigError for other schemes and for a
/// command that is not allowed; reading throws DataError and NetworkError
ByteSource open_source(const std::string& url, const SourceOptions& options = {});

/// A part of a file that lies behind http(s)://, s3:// or hf://.
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
