// SPDX-License-Identifier: MIT
// The inner loops of our operations, for one instruction set of the processor. Torch is not included
// here: what is compiled for one set must not be shared with code that runs on all processors.
#pragma once

#include <cstdint>

namespace dalle2::loops {

/// bfloat16 in memory: the upper half of a float32.
struct Half {
  uint16_t bits;
};

/// A group of channels of one sample, whose pixels lie one after the other.
struct Group {
  int64_t channels;
  int64_t pixels;
  const float* gain;   ///< [channels] what the normalised values are multiplied by
  const float* shift;  ///< [channels] and what is added then
};

struct Moments {
  float mean;
  float rstd;  ///< 1 / sqrt(variance + eps)
};

/// For one element type T of maps in memory, [channels, pixels].
template <class T>
struct GroupNormSilu {
  /// y = silu((x - mean) rstd gain + shift) @return the moments of the group
  Moments (*forward)(const Group& group, double eps, const T* x, T* y);
  /// @param scratch [channels, pixels]
  /// @param dgain, dshift [channels] gradients of gain and shift
  void (*backward)(const Group& group,
                   Moments moments,
                   const T* dy,
                   const T* x,
                   T* dx,
                   float* scratch,
                   float* dgain,
                   float* dshift);
};

struct Table {
  GroupNormSilu<float> group_norm_silu_float;
  GroupNormSilu<Half> group_norm_silu_half;
};

const Table& baseline();
const Table& avx2();
const Table& avx512();
/// Those for the most that this processor has.
const Table& best();

}  // namespace dalle2::loops
