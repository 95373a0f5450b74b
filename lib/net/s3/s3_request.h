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

/// Names and values, not encoded.
using S3Query = std::vector<std::pair<std::string, std::string>>;

struct SignedRequest {
  std::string host = {};  ///< with a port that is not the usual one
  std::string path = {};  ///< encoded, from the first slash
  S3Query query = {};
  std::map<std::string, std::string> headers = {};  ///< more to sign, names in lower case
  std::string method = "GET";
  std::string body_sha256 = {};  ///< in hexadecimal digits; empty: there is no body
};

/// The headers of the request ("Name: value"): its own, host, date, token and Authorization.
std::vector<std::string> sign_request(const SignedRequest& request,
                                      const SigningKey& key,
                                      std::time_t now);

/// A request for an object or a bucket. Keys are looked up and the request is signed again at each
/// attempt: temporary keys may be replaced meanwhile, and a signature is good for 15 minutes. Refusals
/// are explained without our keys, whatever the store says.
/// @param what query, method and hash of the body
/// @param writes whether something is to be written
/// @throws ConfigError
HttpCall s3_call(const S3Url& url, SignedRequest what, bool writes);

}  // namespace dalle2
