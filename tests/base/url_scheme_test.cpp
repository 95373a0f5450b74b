// SPDX-License-Identifier: MIT
#include "base/url_scheme.h"

#include <catch2/catch.hpp>

using namespace dalle2;

TEST_CASE("the scheme of an address has no case") {
  CHECK(with_small_schemes("HTTPS://u:P@H/A?B") == "https://u:P@H/A?B");
  CHECK(with_small_schemes("S3://B/K::Http://h/{}::FILE:/a::Hf://O/N/F") ==
        "s3://B/K::http://h/{}::file:/a::hf://O/N/F");
  for (const char* text : {"", "H", "HTTP:/h", "HTTPX://h", "a/HTTP://h", "PIPE:cat HTTP://h"}) {
    CHECK(with_small_schemes(text) == text);
  }
}
