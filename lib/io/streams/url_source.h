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

}  // namespace dalle2
