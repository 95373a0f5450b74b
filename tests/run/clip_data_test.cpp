// SPDX-License-Identifier: MIT
#include "run/clip/clip_data.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace dalle2 {
namespace {

TEST_CASE("a caption is of the class that it names as whole words") {
  const std::vector<std::string> classes = {"car", "Sports Car", "sports", "dog"};
  CHECK(class_of_caption("a CAR, red", classes) == 0);
  CHECK(class_of_caption("a sports car", classes) == 1);
  CHECK(class_of_caption("a carpet", classes) == -1);
  CHECK(class_of_caption("a dog in a sports car", classes) == -1);
  CHECK(class_of_caption("a dog", classes) == 3);
  CHECK(class_of_caption("", classes) == -1);
}

TEST_CASE("the texts of a class have to fit the context") {
  const ClipTokenizer letters("", "test");  // a token a letter
  ClipEvaluateConfig config;
  config.classes = {"cat", "elephant"};
  config.templates = {"a {}"};
  CHECK_NOTHROW(check_class_texts(config, letters, 11));  // two enclose 1 + 8
  CHECK_THROWS_WITH(
      check_class_texts(config, letters, 10),
      Catch::Matchers::Contains("/evaluate/classes: \"a elephant\" has 11 tokens, and "
                                "/clip/text_cfg/context_length is 10"));
}

}  // namespace
}  // namespace dalle2
