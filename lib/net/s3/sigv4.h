// SPDX-License-Identifier: MIT
// AWS Signature Version 4.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dalle2 {

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

}  // namespace dalle2
