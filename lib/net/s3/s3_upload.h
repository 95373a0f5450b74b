// SPDX-License-Identifier: MIT
// Objects that are written to S3.
#pragma once

#include <cstdint>
#include <string>

#include "net/http_call.h"

namespace dalle2 {

struct S3UploadOptions {
  HttpOptions http = {};
  bool plain_http = false;  ///< to a store of another machine
  /// Files above it are sent in parts, so that a cut costs a part and not all: of a file over a link that
  /// breaks every 40 MiB, less than a fifth is sent twice. S3 takes 5 MiB and more. Of a file that would have
  /// more than 1,000 parts they are larger.
  int64_t part_bytes = int64_t{6} << 20;
};

/// Stores a file as the object of a url ("s3://bucket/key"), whole or not at all. The store checks
/// the SHA-256 of each part. With notes of an upload of this file (url, size, time of change) to this
/// object, only what the store has not yet is sent; an upload of another file is abandoned.
/// @throws NetworkError, DataError (the file), ConfigError
void s3_upload(const std::string& path,
               const std::string& url,
               const UploadNotes& notes,
               const S3UploadOptions& options = {});

/// Takes away the parts of an upload that nobody will finish: a store keeps and charges for them. For a file
/// that is dropped. One short attempt; throws nothing.
/// @param notes the text that s3_upload() has kept; empty: nothing is done
void s3_abandon(const std::string& url, const std::string& notes, bool plain_http);

/// Asks whether the bucket of a url is there and knows the keys. @throws NetworkError, ConfigError
void s3_check_bucket(const std::string& url, const S3UploadOptions& options = {});

}  // namespace dalle2
