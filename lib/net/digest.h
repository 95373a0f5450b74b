// SPDX-License-Identifier: MIT
// SHA-256 (FIPS 180-4), of files too, HMAC (RFC 2104) of short texts, the older hashes by which
// services name their files, and bytes as text. All by OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of OpenSSL

namespace dalle2 {

/// 32 bytes.
std::string sha256(std::string_view text);
/// 32 bytes. @param key of any length
std::string hmac_sha256(std::string_view key, std::string_view text);
/// Two lower-case digits a byte.
std::string to_hex(std::string_view bytes);
/// RFC 4648, section 4.
std::string base64(std::string_view bytes);

/// SHA-1 and MD5 name files and find damage; they stop no attacker.
enum class HashKind { kSha256, kSha1, kMd5 };

/// The hash of bytes that come piece by piece.
class Hash {
 public:
  explicit Hash(HashKind kind = HashKind::kSha256);
  void add(const void* data, size_t size);
  /// Of all that was added: 32, 20 or 16 bytes. Nothing can be added afterwards.
  std::string bytes();
  std::string hex() { return to_hex(bytes()); }

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// The hash of a file, or of `size` bytes of it from `offset` on, in hexadecimal digits.
/// @param check called now and then; it may throw
/// @throws DataError the file cannot be read, or ends before
std::string sha256_of_file(const std::string& path,
                           int64_t offset = 0,
                           std::optional<int64_t> size = {},
                           const std::function<void()>& check = {});

}  // namespace dalle2
