// SPDX-License-Identifier: MIT
#include "net/digest.h"

#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/error.h"

namespace dalle2 {

namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

/// Where OpenSSL writes.
unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace

std::string sha256(std::string_view text) {
  Hash hash;
  hash.add(text.data(), text.size());
  return hash.bytes();
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string code(SHA256_DIGEST_LENGTH, '\0');
  const int size = static_cast<int>(key.size());
  HMAC(EVP_sha256(), key.data(), size, bytes_of(text), text.size(), bytes_of(code), nullptr);
  return code;
}

std::string to_hex(std::string_view bytes) {
  return fmt::format("{:02x}", fmt::join(bytes_of(bytes), bytes_of(bytes) + bytes.size(), ""));
}

std::string base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');  // OpenSSL writes a zero behind it
  EVP_EncodeBlock(bytes_of(text), bytes_of(bytes), static_cast<int>(bytes.size()));
  return text;
}

Hash::Hash(HashKind kind) : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  const EVP_MD* const method = kind == HashKind::kSha256 ? EVP_sha256()
                               : kind == HashKind::kSha1 ? EVP_sha1()
                                                         : EVP_md5();
  if (context_ && EVP_DigestInit_ex(context_.get(), method, nullptr) != 0) return;
  throw ResourceError("OpenSSL refuses to begin a hash (is this machine in FIPS mode?)");
}

void Hash::add(const void* data, size_t size) {
  D2_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1, "a hash that has ended");
}

std::string Hash::bytes() {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  D2_CHECK(EVP_DigestFinal_ex(context_.get(), bytes_of(digest), &size) == 1,
           "a hash that has ended");
  digest.resize(size);
  return digest;
}

std::string sha256_of_file(const std::string& path,
                           int64_t offset,
                           std::optional<int64_t> size,
                           const std::function<void()>& check) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  if (!file) throw DataError("{}: cannot be read", path);
  Hash hash;
  std::vector<char> piece(size_t{1} << 20);
  for (int64_t left = size.value_or(INT64_MAX); left > 0;) {
    if (check) check();
    file.read(piece.data(),
              std::min<std::streamsize>(static_cast<std::streamsize>(piece.size()), left));
    const std::streamsize got = file.gcount();
    hash.add(piece.data(), static_cast<size_t>(got));
    left -= got;
    if (file) continue;
    if (!file.eof() || (size && left > 0)) throw DataError("{}: cannot be read to its end", path);
    break;
  }
  return hash.hex();
}

}  // namespace dalle2
