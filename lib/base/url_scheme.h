// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// An address, or a list of them joined by "::", with http, https, s3, hf and file in small letters:
/// schemes have no case (RFC 3986, 3.1).
std::string with_small_schemes(std::string url);

}  // namespace dalle2
