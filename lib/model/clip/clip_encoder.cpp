// SPDX-License-Identifier: MIT
#include "model/clip/clip_encoder.h"

#include <torch/types.h>

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/resize.h"

namespace dalle2 {
namespace {

at::Tensor length_of(const at::Tensor& rows) {
  return at::norm(rows, 2, at::IntArrayRef{-1}, /*keepdim=*/true);  // [N, 1]
}

}  // namespace

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

at::Tensor slerp(const at::Tensor& from, const at::Tensor& to, double share) {
  constexpr double kNoAngle = 1e-6;  // its sine is then mostly rounding
  const at::Tensor a = from.to(at::kDouble), b = to.to(at::kDouble);
  const at::Tensor a_length = length_of(a), b_length = length_of(b);
  const at::Tensor a_unit = a / a_length, b_unit = b / b_length;
  const at::Tensor angle = (a_unit * b_unit).sum(-1, true).clamp(-1, 1).acos();  // [N, 1]
  const at::Tensor sine = angle.sin();
  const at::Tensor straight = sine < kNoAngle;
  const auto weight = [&](double part) {
    return at::where(straight, part, (angle * part).sin() / sine.clamp_min(kNoAngle));
  };
  const at::Tensor direction = weight(1 - share) * a_unit + weight(share) * b_unit;
  return (direction * at::lerp(a_length, b_length, share)).to(from.scalar_type());
}

at::Tensor text_difference(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor difference = to.to(at::kDouble) - from.to(at::kDouble);
  return (difference / length_of(difference)).to(from.scalar_type());
}

FrozenClipImpl::FrozenClipImpl(std::shared_ptr<ClipEncoderImpl> clip)
    : clip_(register_module("clip", std::move(clip))) {
  for (const at::Tensor& parameter : clip_->parameters()) parameter.requires_grad_(false);
  FrozenClipImpl::train(false);
}

void FrozenClipImpl::train(bool /*on*/) {
  torch::nn::Module::train(false);
}

}  // namespace dalle2
