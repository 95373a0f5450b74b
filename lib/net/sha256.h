// SPDX-License-Identifier: MIT
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) of short texts, by OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// 32 bytes.
std::string sha256(std::string_view text);
/// 32 bytes. @param key of any length
std::string hmac_sha256(std::string_view key, std::string_view text);
/// Two lower-case digits a byte.
std::string to_hex(std::string_view bytes);

}  // namespace dalle2
