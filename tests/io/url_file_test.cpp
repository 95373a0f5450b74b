// SPDX-License-Identifier: MIT
#include "io/streams/url_source.h"

#include <catch2/catch.hpp>

using namespace dalle2;

TEST_CASE("the name of an url's file tells shards apart") {
  CHECK(url_file_name("https://u:p@h/a/000012.tar?x=/7#/8") == "000012.tar");
  CHECK(url_file_name("a?b/000012.tar") == "000012.tar");
  CHECK(url_file_name("000012.tar") == "000012.tar");
  CHECK(url_file_name("pipe:s3cmd get s3://bucket/00007.tar -") == "00007.tar -");
}
