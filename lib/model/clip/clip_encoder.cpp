// SPDX-License-Identifier: MIT
#include "model/clip/clip_encoder.h"

#include "base/error.h"
#include "base/text.h"
#include "model/resize.h"

namespace dalle2 {

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
