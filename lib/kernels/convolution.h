// SPDX-License-Identifier: MIT
// Convolutions, on the CPU in the way that fits their shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

struct ConvolutionInputs {
  at::Tensor x;       ///< [B, in, H, W]
  at::Tensor weight;  ///< [out, in, k, k]
  at::Tensor bias;    ///< [out] or undefined
};

/// How convolution() computes.
enum class ConvolutionWay {
  kPlain,   ///< at::conv2d
  kTokens,  ///< 1x1 of a map whose channels lie side by side: a product of matrices, without a copy
  kUnfolded,  ///< of a small map of many channels: a product with the squares around its pixels
  kTiles,  ///< 3x3 of many channels, by tiles of 4x4 pixels: a quarter of the products (Winograd)
  kWide,   ///< of few maps to few, e.g. with 15x15 pixels: loops of our own along the rows
};
ConvolutionWay way_of(const ConvolutionInputs& inputs, int64_t stride, int64_t padding);

/// at::conv2d with its gradients, under autocast in autocast's type. Second derivatives are ATen's.
at::Tensor convolution(const ConvolutionInputs& inputs, int64_t stride, int64_t padding);

/// While one lives, the CPU computes convolutions as a device does that has no ways of its own, and keeps maps
/// and filters in their plain order: results of such a device can then be compared bit by bit.
class PlainConvolutions {
 public:
  PlainConvolutions();
  ~PlainConvolutions();
  PlainConvolutions(const PlainConvolutions&) = delete;
  PlainConvolutions& operator=(const PlainConvolutions&) = delete;
};

/// Whether convolutions on the device like maps and filters whose channels lie side by side.
bool likes_channels_last(const at::Device& device);

}  // namespace dalle2
