// SPDX-License-Identifier: MIT
// Convolutions. On the CPU, their shape decides the algorithm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

struct ConvolutionInputs {
  at::Tensor x;       ///< [B, in, H, W]
  at::Tensor weight;  ///< [out, in, k, k]
  at::Tensor bias;    ///< [out] or undefined
};

/// What convolution() computes with.
enum class ConvolutionAlgorithm {
  kPlain,     ///< at::conv2d
  kTokens,    ///< 1x1 of a channels-last map: a matrix product without a copy
  kUnfolded,  ///< a small map of many channels: a matrix product with the squares around its pixels
  kWinograd,  ///< 3x3 of many channels: tiles of 4x4 pixels, a quarter of the products
  kHalving,  ///< 4x4 of many channels with a stride of 2: such tiles, two fifths of the products; where few
             ///< tiles share the weights, only for the gradient of the weights
  kWide,  ///< few maps to few, e.g. with 15x15 kernels: loops of our own along the rows
};
/// Whether its products are those of Winograd's tiles, at least in the gradient of the weights.
inline bool is_by_tiles(ConvolutionAlgorithm algorithm) {
  return algorithm == ConvolutionAlgorithm::kWinograd ||
         algorithm == ConvolutionAlgorithm::kHalving;
}

ConvolutionAlgorithm algorithm_for(const ConvolutionInputs& inputs,
                                   int64_t stride,
                                   int64_t padding);

/// Whether a weight is of small filters over many channels, on the CPU: convolutions of channels-last maps reorder them at each use unless
/// they lie so themselves. Larger filters have few channels, and are fast as they are.
bool belongs_channels_last(const at::Tensor& weight);

/// at::conv2d with its gradients, under autocast in autocast's type. Second derivatives are ATen's.
at::Tensor convolution(const ConvolutionInputs& inputs, int64_t stride, int64_t padding);

/// What transposed_convolution() computes with: kHalving or kPlain. @param inputs as there
ConvolutionAlgorithm transposed_algorithm_for(const ConvolutionInputs& inputs,
                                              int64_t stride,
                                              int64_t padding);

/// at::conv_transpose2d with its gradients, under autocast in autocast's type. Second derivatives are ATen's. With a 4x4 kernel and a
/// stride of 2, on the CPU by tiles as above. @param inputs x [B, in, H, W], weight [in, out, k, k], bias [out] or undefined
at::Tensor transposed_convolution(const ConvolutionInputs& inputs, int64_t stride, int64_t padding);

}  // namespace dalle2
