// SPDX-License-Identifier: MIT
// Objects that are written to S3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/http_call.h"

namespace dalle2 {

/// Files above it are sent in parts, so that a cut costs a part and not all.
inline constexpr int64_t kS3PartBytes = int64_t{64} << 20;

/// Keeps the ids of uploads in parts while they are under way: a killed process abandons nothing, and a
/// store keeps the parts of an upload, and charges for them, until it is told.
class S3UploadIds {
 public:
  virtual ~S3UploadIds() = default;
  /// Of an object ("s3://bucket/key").
  virtual std::vector<std::string> load(const std::string& url) = 0;
  /// @throws Error
  virtual void keep(const std::string& url, const std::vector<std::string>& ids) = 0;
};

struct S3UploadOptions {
  HttpCallOptions http = {};
  /// Null: none are kept. Uploads to the object that it knows are abandoned before another one begins.
  S3UploadIds* ids = nullptr;
  bool plain_http = false;            ///< to a store of another machine
  int64_t part_bytes = kS3PartBytes;  ///< S3 takes 5 MiB and more, and at most 10,000 parts
};

/// Stores a file as the object of a url ("s3://bucket/key"), whole or not at all. The store checks
/// the SHA-256 of each part.
/// @throws NetworkError, DataError (the file), ConfigError
void s3_upload(const std::string& path,
               const std::string& url,
               const S3UploadOptions& options = {});

/// Asks whether the bucket of a url is there and knows the keys. @throws NetworkError, ConfigError
void s3_check_bucket(const std::string& url, const S3UploadOptions& options = {});

}  // namespace dalle2
