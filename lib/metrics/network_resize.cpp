// SPDX-License-Identifier: MIT
#include "metrics/network_resize.h"

#include <ATen/ATen.h>

#include <vector>

#include "base/error.h"

namespace dalle2 {
namespace {

/// Where the `to` pixels of a side lie among `from`, in TensorFlow 1: the corner of the first pixel
/// on that of the first, no half pixels.
struct Places {
  at::Tensor low, high;  // [to] int64
  at::Tensor weight;     // [to] float32, of `high`
};

Places places_of(int64_t from, int64_t to, const at::TensorOptions& options) {
  // A product of float32, as there: it decides which pixel is hit.
  const auto scale = static_cast<float>(static_cast<double>(from) / static_cast<double>(to));
  const at::Tensor at = at::arange(to, options.dtype(at::kFloat)) * scale;
  const at::Tensor low = at.to(at::kLong);
  return {low, (low + 1).clamp_max(from - 1), at - low.to(at::kFloat)};
}

at::Tensor resize_like_tensorflow1(const at::Tensor& images, int64_t side) {
  const Places rows = places_of(images.size(2), side, images.options());
  const Places columns = places_of(images.size(3), side, images.options());
  const auto across = [&](const at::Tensor& of) {
    const at::Tensor left = of.index_select(3, columns.low);
    return left + (of.index_select(3, columns.high) - left) * columns.weight;
  };
  const at::Tensor top = across(images.index_select(2, rows.low));
  const at::Tensor bottom = across(images.index_select(2, rows.high));
  return top + (bottom - top) * rows.weight.unsqueeze(1);
}

}  // namespace

at::Tensor resize_for_network(const at::Tensor& images, int64_t side, NetworkResize how) {
  D2_CHECK(images.dim() == 4 && images.scalar_type() == at::kFloat, "pictures of float32");
  const std::vector<int64_t> size = {side, side};
  switch (how) {
    case NetworkResize::tf1:
      return resize_like_tensorflow1(images, side);
    case NetworkResize::antialias:
      return at::_upsample_bilinear2d_aa(images, size, /*align_corners=*/false);
    case NetworkResize::clean:
      return at::_upsample_bicubic2d_aa(images, size, /*align_corners=*/false);
  }
  throw std::logic_error("a way to resize");
}

at::Tensor to_bytes(const at::Tensor& images) {
  return images.to(at::kFloat).mul(255).add_(0.5).clamp_(0, 255).to(at::kByte);
}

}  // namespace dalle2
