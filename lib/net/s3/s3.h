// SPDX-License-Identifier: MIT
// Objects of S3 and of stores that speak like it, to read and to write. Who we are and where it is, the environment and the files of the AWS tools say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_call.h"

namespace dalle2 {

// What is taken of a folder's listing that a server sends.
inline constexpr uint64_t kMostPageBytes = uint64_t{1} << 26;
inline constexpr size_t kMostListedFiles = 1'000'000;
inline constexpr size_t kMostNameBytes = 4096;  ///< of a web server's list
inline constexpr size_t kMostPages = 20'000;    ///< of a listing in S3, 1000 names or fewer each

struct S3Access {
  std::string key_id, secret, session_token;  ///< all empty: anonymous
  std::string region;                         ///< "us-east-1" if nothing says another
  std::string endpoint;                       ///< http(s)://HOST[:PORT][/PATH]; empty: Amazon's
  std::string source;                         ///< of the keys, for messages; "" if anonymous

  bool is_anonymous() const { return key_id.empty(); }
};

/// Keys: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile
/// AWS_PROFILE (or "default") of ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE) and ~/.aws/config
/// (AWS_CONFIG_FILE). Region: AWS_REGION, AWS_DEFAULT_REGION, the profile. Endpoint:
/// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's (its `services` section's too).
/// @throws ConfigError for half a pair of keys, a named profile that is nowhere, a profile that
/// gets its keys in a way that is not known here, an endpoint that is not a url
S3Access find_s3_access();

struct S3Url {
  std::string bucket, key;
};

/// "s3://bucket/key": the key as it is, nothing encoded. @throws ConfigError without a bucket
S3Url parse_s3_url(const std::string& url);

/// The signed GET of an object. With a custom endpoint, or a dot in its name, the bucket is in the
/// path, else in the host's name. @throws ConfigError
HttpGet s3_request(const std::string& url);

/// The names (no folders) of the objects in the folder of a url: those whose key begins with it
/// and has no more slash. @throws ConfigError, NetworkError, HttpStatusError
/// @param url "s3://bucket/folder/" or with the beginning of the names, "s3://bucket/folder/img_"
std::vector<std::string> s3_list(const std::string& url, const HttpOptions& options = {});

struct S3Page {
  std::vector<std::string> keys;
  bool is_last = true;
  std::string next_token;  ///< for the next page
};

S3Page parse_s3_page(std::string_view xml);

struct S3Request {
  std::string method = "GET";
  std::map<std::string, std::string> query = {};  ///< not encoded
  std::string body_sha256 = {};  ///< in hexadecimal digits; empty: there is no body
  std::string host = {};         ///< with a port that is not the usual one
  std::string path = {};         ///< encoded, from the first slash
};

/// The headers of the request ("Name: value"), its Authorization the last: AWS Signature Version 4,
/// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
/// libcurl does not sign: up to 7.88 it signs headers that it does not send, later it refuses keys with "..".
std::vector<std::string> sign_request(const S3Request& request,
                                      const S3Access& keys,
                                      std::time_t now);

struct S3UploadOptions {
  HttpOptions http = {};
  bool plain_http = false;  ///< to a store of another machine
  /// Files above it are sent in parts, so that a cut costs a part and not all. S3 takes 5 MiB and more. Of a
  /// file that would have more than 1,000 parts they are larger.
  int64_t part_bytes = int64_t{6} << 20;
};

/// Stores a file as the object of a url ("s3://bucket/key"), whole or not at all. The store checks
/// the SHA-256 of each part. @throws NetworkError, DataError (the file), ConfigError
void s3_upload(const std::string& path,
               const std::string& url,
               UploadNotes& notes,
               const S3UploadOptions& options = {});

/// Asks whether the bucket of a url is there and knows the keys. @throws NetworkError, ConfigError
void s3_check_bucket(const std::string& url, const S3UploadOptions& options = {});

}  // namespace dalle2
