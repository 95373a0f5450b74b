// SPDX-License-Identifier: MIT
// What reading from and writing to S3 share: where an object is, how a request is signed, what a
// refusal means.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/http_transfer.h"
#include "net/s3/aws_config.h"
#include "net/s3/s3.h"

namespace dalle2 {

// AWS Signature Version 4:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
struct SigningKey {
  std::string key_id, secret;
  std::string session_token = {};  ///< of temporary keys; else empty
  std::string region = "us-east-1";
};

struct SignedRequest {
  std::string host;  ///< with a port that is not the usual one
  std::string path;  ///< encoded, from the first slash
  std::vector<std::pair<std::string, std::string>> query = {};  ///< not encoded
  std::map<std::string, std::string> headers = {};  ///< more to sign, names in lower case
  std::string method = "GET";
  std::string body_sha256 = {};  ///< in hexadecimal digits; empty: there is no body
};

/// The query as it is signed and has to be sent: encoded, sorted.
std::string canonical_query(std::vector<std::pair<std::string, std::string>> query);

/// The headers of the request ("Name: value"): its own, host, date, token and Authorization.
std::vector<std::string> sign_request(const SignedRequest& request,
                                      const SigningKey& key,
                                      std::time_t now);

/// Names and values, not encoded.
using S3Query = std::vector<std::pair<std::string, std::string>>;

/// Where an object or a bucket is: what is in the url before the query.
struct S3Place {
  std::string origin;  ///< "https://host:port"
  SignedRequest request;
};

S3Place s3_place(const S3Url& url, const S3Access& access);

/// The headers of a request, signed unless the access is anonymous.
std::vector<std::string> s3_headers(const SignedRequest& request, const S3Access& access);

/// What a refusal means and what to do, without our keys, whatever the store says.
/// @param writes whether something was to be written
std::string explain_s3_refusal(const HttpResponse& response,
                               const std::string& body,
                               const S3Access& access,
                               bool writes);

}  // namespace dalle2
