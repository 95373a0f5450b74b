// SPDX-License-Identifier: MIT
// How sure lookup-free quantisation is of its codes, and how evenly it uses them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// All codes of that many bits. @return [2^bits, bits], values -1 and 1, the first bit the highest
at::Tensor sign_codes(int64_t bits, const at::TensorOptions& options);

/// Entropies, in nats, of the distributions that tokens have over all codes: softmax of 200 times
/// the products with the codes (Yu et al. 2023, section 3.1). Logarithms are of 1e-5
/// at least.
struct CodeEntropies {
  at::Tensor per_token;  ///< [], the mean over the tokens
  at::Tensor of_mean;    ///< [], of the mean distribution
};

/// The bits of a code are independent, so a distribution is the product of those of two halves of
/// the bits: of 65,536 codes 512 numbers are kept for a token. Gradients reach `tokens`.
/// @param tokens [N, bits]
CodeEntropies code_entropies(const at::Tensor& tokens);

}  // namespace dalle2
