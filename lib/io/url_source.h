// SPDX-License-Identifier: MIT
// Bytes from wherever an url points.
#pragma once

#include <string>

#include "io/stream.h"
#include "net/http_stream.h"
#include "net/url.h"

namespace dalle2 {

/// True for a path or a `file:` url.
bool is_local_url(const std::string& url);
/// The path of a local url: without `file:` or `file://`.
std::string local_path(const std::string& url);

/// The bytes at an url: a path, `file:PATH`, `http://` and `https://` (HttpStream), or
/// `pipe:COMMAND`, the output of a shell command whose failure is a DataError at the end of it
/// (status 141, a closed pipe, is none).
/// @throws DataError (no such file, no such command), ConfigError for other schemes; reading throws
/// DataError and NetworkError
ByteSource open_source(const std::string& url, const HttpOptions& http = {});

}  // namespace dalle2
