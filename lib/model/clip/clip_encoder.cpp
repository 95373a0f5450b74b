// SPDX-License-Identifier: MIT
#include "model/clip/clip_encoder.h"

#include "base/error.h"
#include "base/text.h"
#include "model/resize.h"

namespace dalle2 {

at::Tensor patch_values(const at::Tensor& images, int64_t patch_size) {
  return images.unflatten(3, {-1, patch_size})
      .unflatten(2, {-1, patch_size})  // [B, 3, row, y, column, x]
      .permute({0, 2, 4, 3, 5, 1})
      .flatten(3)
      .flatten(1, 2);
}

at::Tensor ClipEncoderImpl::resized(const at::Tensor& images) const {
  if (images.dim() != 4 || images.size(-1) != images.size(-2) || images.size(-1) < image_size()) {
    throw DataError(
        "CLIP got pictures of shape {}: expected [B, channels, H, H] with H at least {}, the side "
        "of its image tower's input",
        shape_text(images.sizes()),
        image_size());
  }
  return resize_image_to(images, image_size());
}

}  // namespace dalle2
