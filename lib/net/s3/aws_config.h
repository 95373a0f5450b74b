// SPDX-License-Identifier: MIT
// Who we are to S3 and where it is: the environment and the files of the AWS tools.
#pragma once

#include <string>

namespace dalle2 {

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

}  // namespace dalle2
