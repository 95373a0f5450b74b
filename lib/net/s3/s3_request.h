// SPDX-License-Identifier: MIT
// What reading from and writing to S3 share: where an object is, how a request is signed, what a
// refusal means.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "net/http_response.h"
#include "net/s3/aws_config.h"
#include "net/s3/s3.h"
#include "net/s3/sigv4.h"

namespace dalle2 {

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
