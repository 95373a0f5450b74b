// SPDX-License-Identifier: MIT
// `sample --image --clip`: a CLIP's embeddings of pictures.
#include <torch/types.h>

#include <algorithm>

#include "base/untrusted_text.h"
#include "data/pictures/preprocess.h"
#include "run/clip/clip_data.h"
#include "run/commands/sample_clip.h"
#include "run/pictures/pictures.h"
#include "trainer/tensor_group.h"

namespace dalle2 {
namespace {

/// @param picture [C, H, W]
void check_picture(const at::Tensor& picture,
                   const std::string& given,
                   const SampleCommand& command,
                   int64_t side) {
  if (picture.numel() == 0 || (picture.size(0) != 1 && picture.size(0) != 3)) {
    throw DataError("{}: expected pictures of 1 or 3 channels, got {} x {} x {}",
                    given,
                    picture.size(0),
                    picture.size(1),
                    picture.size(2));
  }
  const auto [lowest, highest] = at::aminmax(picture);
  if (lowest.item<float>() < 0 || highest.item<float>() > 1) {
    throw DataError("{}: expected values from 0 to 1, what a CLIP is shown, got {} to {}",
                    given,
                    lowest.item<float>(),
                    highest.item<float>());
  }
  if (std::min(picture.size(1), picture.size(2)) >= side) return;
  throw DataError(
      "{}: expected pictures of {} x {} pixels or more, what --clip {} sees, got {} x {}\n  "
      "Give a larger picture: an enlarged one has other embeddings than what the decoder learnt.",
      given,
      side,
      side,
      printable(*command.clip_path),
      picture.size(2),
      picture.size(1));
}

}  // namespace

at::Tensor SampleClip::embed_pictures(const char* option, const std::string& path) const {
  const int64_t side = clip_.clip->image_size();
  const Preprocess preprocess(clip_preprocessing(side));
  const std::string given = printable(path);
  std::vector<at::Tensor> seen;
  try {
    for (const at::Tensor& picture : load_pictures_of_any_size(path)) {
      check_picture(picture, given, command_, side);
      seen.push_back(from_picture(preprocess.apply(to_picture(picture), /*random=*/nullptr)));
    }
  } catch (const DataError& error) {
    throw DataError("{} {}", option, error.what());  // which begins with the path
  }
  if (seen.empty())
    throw DataError("{} {}: expected at least one picture, got none", option, given);
  const torch::NoGradGuard no_grad;
  const at::Tensor images = at::stack(seen);  // [N, 3, side, side]
  std::vector<at::Tensor> embeds;
  for (const ChunkRange& range : chunk_ranges(images.size(0), command_.batch_size)) {
    embeds.push_back(
        clip_.clip->embed_image(images.narrow(0, range.begin, range.length).to(device_)).cpu());
  }
  return at::cat(embeds);
}

}  // namespace dalle2
