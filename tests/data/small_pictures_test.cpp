// SPDX-License-Identifier: MIT
#include "data/pictures/preprocess.h"

#include <catch2/catch.hpp>
#include <string>

#include "io/pictures/image.h"
#include "support/captured_log.h"

namespace dalle2::test {
namespace {

std::string picture(int width, int height) {
  Image image;
  image.width = width;
  image.height = height;
  image.pixels.assign(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, 7);
  return encode_png(image);
}

}  // namespace

TEST_CASE("pictures that a CLIP sees enlarged are warned of, the first and then by hundreds") {
  CapturedLog log;
  SmallPictures small({.side = 32});
  small.look_at(picture(32, 40), "whole");
  small.look_at("no picture", "broken");
  small.look_at("\x89PNG\r\n", "cut");
  CHECK(log.count("enlarged") == 0);
  small.look_at(picture(50, 31), "narrow");
  CHECK(log.count("narrow: has 50 x 31 pixels, and the CLIP sees 32 x 32") == 1);
  const std::string other = picture(8, 8);
  for (int i = 0; i < 98; ++i) small.look_at(other, "other");
  CHECK(log.count("other: has") == 0);
  CHECK(log.count("pictures were enlarged") == 0);
  small.look_at(other, "other");
  CHECK(log.count("pictures were enlarged for the CLIP 100 times so far") == 1);
}

TEST_CASE("a CLIP that sees the whole of a picture enlarges it if its longer side is too short") {
  ClipPreprocessing clip = {.side = 32};
  CHECK(clip.enlarges(50, 31));
  clip.resize_mode = "squash";
  CHECK(clip.enlarges(50, 31));
  clip.resize_mode = "longest";
  CHECK_FALSE(clip.enlarges(50, 31));
  CHECK(clip.enlarges(31, 31));
}

}  // namespace dalle2::test
