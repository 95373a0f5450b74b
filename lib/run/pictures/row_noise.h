// SPDX-License-Identifier: MIT
// Noise of which each row has an address of its own.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "diffusion/sampler.h"

namespace dalle2 {

/// Noise for some rows of what is sampled: a row's draws depend on seed and row alone, so that it
/// comes out the same in any batch.
NoiseSource noise_by_row(int64_t seed,
                         const std::vector<int64_t>& rows,
                         const at::Device& device,
                         int64_t candidates = 1);
/// The same for the rows `first` to `first` + `count` - 1.
/// @param candidates rows of one sample, one after another, each with draws of its own
NoiseSource noise_by_row(
    int64_t seed, int64_t first, int64_t count, const at::Device& device, int64_t candidates = 1);

}  // namespace dalle2
