// SPDX-License-Identifier: MIT
// What the CPU has, and whether a device computes with algorithms that were made for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace dalle2 {

/// Whether this processor has what at::cpu::get_cpu_capabilities() calls so: "avx512_bf16", "amx_bf16".
bool cpu_has(const char* capability);

/// The CPU: channels-last maps and filters, the convolutions of convolution.h, shared prefixes of a prior.
bool uses_cpu_algorithms(const at::Device& device);

/// While one exists, the CPU computes like a device without such algorithms, and keeps maps and filters planar.
/// Results of such a device can then be compared bit by bit.
class PlainAlgorithms {
 public:
  PlainAlgorithms();
  ~PlainAlgorithms();
  PlainAlgorithms(const PlainAlgorithms&) = delete;
  PlainAlgorithms& operator=(const PlainAlgorithms&) = delete;
};

// Views of tensors of the CPU for passes that have gradients of their own: LibTorch's functions behind its dispatcher, which
// autograd does not see.

/// A matrix, or several, whose last two dimensions change places.
inline at::Tensor turned(const at::Tensor& t) {
  std::vector<int64_t> sizes = t.sizes().vec(), strides = t.strides().vec();
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  std::swap(strides.end()[-1], strides.end()[-2]);
  return at::cpu::as_strided(t, sizes, strides);
}

/// [B, C, H, W], channels last -> [B H W, C]
inline at::Tensor rows_of_map(const at::Tensor& map) {
  const int64_t channels = map.size(1);
  return at::cpu::as_strided(
      map, {map.size(0) * map.size(2) * map.size(3), channels}, {channels, 1});
}

/// [B H W, C] -> [B, C, H, W], channels last, of the sizes of `like` but for C.
inline at::Tensor map_of_rows(const at::Tensor& rows, const at::Tensor& like) {
  const int64_t height = like.size(2), width = like.size(3), channels = rows.size(1);
  return at::cpu::as_strided(rows,
                             {like.size(0), channels, height, width},
                             {height * width * channels, 1, width * channels, channels});
}

}  // namespace dalle2
