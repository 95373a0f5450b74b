// SPDX-License-Identifier: MIT
#include "net/library_versions.h"

#include <curl/curl.h>
#include <openssl/crypto.h>

namespace dalle2 {

std::string net_library_versions() {
  return std::string("libcurl ") + curl_version_info(CURLVERSION_NOW)->version + ", OpenSSL " +
         OpenSSL_version(OPENSSL_VERSION_STRING);
}

}  // namespace dalle2
