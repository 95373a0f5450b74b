// SPDX-License-Identifier: MIT
// Dropout masks in one operation. The random bits are counter-based, so they depend neither on the device nor on the chunk size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// Fills a mask, on a GPU by ATen's operations with the same bits: 0 with probability 1 - `keep`, else 1 / `keep`.
/// @param mask [B, ...] contiguous; its samples have the numbers `first_sample` on
/// @param address of the pass and of the place in the network
void fill_dropout_mask_(const at::Tensor& mask,
                        uint64_t address,
                        int64_t first_sample,
                        double keep);

/// The address that fill_dropout_mask_() takes. @param seed of the pass @param place in the network
uint64_t dropout_address(uint64_t seed, int64_t place);

/// The same mask, for work that is recorded: the numbers are read when the mask is filled.
/// @param seed [2] int64 on the device of the mask: the seed, and the number of the first sample
void fill_dropout_mask_from_(const at::Tensor& mask,
                             const at::Tensor& seed,
                             int64_t place,
                             double keep);

}  // namespace dalle2
