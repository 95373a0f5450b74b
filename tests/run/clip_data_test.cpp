// SPDX-License-Identifier: MIT
#include "run/checkpoints/clip_weights.h"

#include <torch/types.h>

#include <catch2/catch.hpp>

#include "support/captured_log.h"

namespace dalle2::test {
namespace {

TEST_CASE(
    "a warning appears at the first truncated caption, and at each power of ten from a hundred") {
  const ClipTokenizer letters("", "test");  // a token a letter
  const CapturedLog log;
  LongCaptions long_captions;
  const auto tokens_of_some = [&](const std::vector<std::string>& captions, TextFrame frame) {
    return tokens_of(captions, letters, 5, frame, &long_captions);
  };
  CHECK(tokens_of_some({"cat", "a"}, TextFrame::kEnclosed).size(0) ==
        2);  // two enclose three: fits
  CHECK(log.count("cut") == 0);
  tokens_of_some({"cat", "mouse", "goose"}, TextFrame::kEnclosed);
  CHECK(log.count("captions of more than 3 tokens are cut: the CLIP sees only their beginning") ==
        1);
  CHECK(log.count("The first such caption: \"mouse\"") == 1);
  tokens_of_some(std::vector<std::string>(97, "mouse"), TextFrame::kEnclosed);  // 99 of them
  tokens_of_some({"mouse"}, TextFrame::kBare);                                  // five fit
  CHECK(log.count("cut") == 1);
  tokens_of_some({"rabbit"}, TextFrame::kBare);
  CHECK(log.count("captions were cut 100 times so far") == 1);
  tokens_of_some(std::vector<std::string>(900, "mouse"), TextFrame::kEnclosed);
  CHECK(log.count("captions were cut 1,000 times so far") == 1);
  CHECK(log.count("cut") == 3);
}

TEST_CASE("a picture of another size than the CLIP's is refused when it is read") {
  ClipNetworkConfig config;
  config.vision_cfg.image_size = 8;
  const LoaderOptions needs = clip_needs(config);
  Batch batch;
  batch.keys = {"wide"};
  batch.images = at::zeros({1, 3, 8, 12});
  CHECK_THROWS_WITH(needs.check_batch(batch),
                    Catch::Contains("sample wide: /data/preprocessing: expected pictures of 8 x 8 "
                                    "pixels, as /clip/vision_cfg/image_size says, got 12 x 8"));
  batch.images = at::zeros({1, 3, 8, 8});
  CHECK_NOTHROW(needs.check_batch(batch));
}

}  // namespace
}  // namespace dalle2::test
