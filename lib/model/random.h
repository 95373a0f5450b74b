// SPDX-License-Identifier: MIT
// Randomness by address: what is drawn depends on where in the run it is drawn, never on what was
// drawn before. A resume, another number of threads or a skipped batch changes nothing.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace dalle2 {

struct RandomAddress {
  int64_t seed = 0;          ///< of the run
  std::string_view purpose;  ///< "train", "validate", "sample", ...
  int64_t epoch = 0;
  int64_t step = 0;  ///< any counter that is unique within the epoch
  int64_t rank = 0;
};

/// 64 well mixed bits of an address (SplitMix64 over its parts).
uint64_t hash_address(const RandomAddress& address);

/// A fresh generator for `device`, seeded by the address.
at::Generator make_generator(const RandomAddress& address, const at::Device& device);

/// A generator on the CPU that takes all 64 bits of a seed.
at::Generator cpu_generator(uint64_t seed);

/// A CPU generator for decisions that the host has to know. For a CUDA generator it is derived from
/// its seed and position, because asking the device would stall the step.
at::Generator host_generator(const at::Generator& generator);

/// Whether a step is conditioned on the network's own first estimate: half of them are (Chen et al.
/// 2022).
/// @param host a generator on the CPU
bool draw_self_condition(const at::Generator& host);

/// From now on only algorithms that give the same bits each time are used; an operation that has
/// none throws. Holds for the whole process; call it before the first work on a GPU.
void use_deterministic_algorithms();

/// From now on cuDNN measures its algorithms at the first convolution of each shape, and takes the fastest. They may differ in the last
/// bits from start to start, so not with use_deterministic_algorithms().
void search_for_algorithms();

/// The masks that a pass uses. A mask depends on the seed, the place in the network and the sample alone: a
/// pass that is computed again, or in other chunks, has the same one.
struct DropoutSeed {
  uint64_t seed = 0;
  int64_t first_sample = 0;  ///< number of the pass' first sample in its batch
  /// [2] int64 on the device of the masks: both numbers, for a pass that is recorded. Undefined: those above are used.
  at::Tensor on_device = {};
};

/// Zero with probability `drop`, else 1 / (1 - drop): what `x` is multiplied by.
/// @param x [B, ...]; @param number of the place in the network @return like x, contiguous
at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number);

}  // namespace dalle2
