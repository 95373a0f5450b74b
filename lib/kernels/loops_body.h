// SPDX-License-Identifier: MIT
// Bodies of the loops; each loops_*.cpp includes them once and is compiled for its own instructions. All is
// in an unnamed namespace, so that the linker cannot take one set's functions for another's.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/loops.h"

namespace dalle2::loops {
namespace {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float load(float value) {
  return value;
}
inline float load(Half value) {
  return bits_as<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline void store(float& to, float value) {
  to = value;
}
/// Rounds to the nearest, ties to even; NaN stays NaN.
inline void store(Half& to, float value) {
  const auto bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>(value != value ? 0x7FC0u : rounded);
}

constexpr int64_t kBlock = 32;

/// s = 1 / (1 + e^-z) of a block, a stage at a time: one value's stages wait for each other, those of several vectors
/// overlap. e^x to 2 units in the last place, for x cut to [-87, 88]: 2^n times a polynomial of the rest (Cephes).
inline void sigmoids(const float* z, float* s) {
  float cut[kBlock];
#pragma omp simd
  for (int64_t i = 0; i < kBlock; ++i) {
    const float x = z[i] < -88.0f ? 88.0f : -z[i];
    cut[i] = x < -87.0f ? -87.0f : x;
  }
#pragma omp simd
  for (int64_t i = 0; i < kBlock; ++i) {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
    const float shifted = cut[i] * 1.44269504f + kRounder;
    const float n = shifted - kRounder;
    float r = cut[i] - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t exponent = bits_as<int32_t>(shifted) - bits_as<int32_t>(kRounder);
    s[i] = 1.0f / (1.0f + p * bits_as<float>((exponent + 127) << 23));
  }
}

/// Calls `block(start of the row, first column, count)` for the blocks of all rows. The count of whole ones is a constant.
template <class Block>
void each_block(const Rows& rows, const Block& block) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    int64_t i = 0;
    for (; i + kBlock <= rows.width; i += kBlock)
      block(row * rows.width, i, std::integral_constant<int64_t, kBlock>());
    if (i < rows.width) block(row * rows.width, i, rows.width - i);
  }
}

// Four rows at a time: each sum is then loaded and stored once for four values.
template <class T>
void rows_sums(const Rows& rows, const T* x, const float* center, float* sum, float* squares) {
  const int64_t width = rows.width;
  for (int64_t i = 0; i < width; ++i) sum[i] = squares[i] = 0;
  int64_t row = 0;
  for (; row + 4 <= rows.rows; row += 4) {
    const T* const x0 = x + row * width;
    const T *const x1 = x0 + width, *const x2 = x1 + width, *const x3 = x2 + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float c = center[i];
      const float d0 = load(x0[i]) - c, d1 = load(x1[i]) - c;
      const float d2 = load(x2[i]) - c, d3 = load(x3[i]) - c;
      sum[i] += (d0 + d1) + (d2 + d3);
      squares[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; row < rows.rows; ++row) {
    const T* const from = x + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float d = load(from[i]) - center[i];
      sum[i] += d;
      squares[i] += d * d;
    }
  }
}

/// z of a block of columns. @param x of a row, from the block on
template <class T, class Count>
void norm_block(const Columns& columns, int64_t first, Count count, const T* x, float* z) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    z[i] = (load(x[i]) - columns.center[at]) * columns.factor[at] + columns.shift[at];
  }
}

template <class T>
void rows_norm(const Rows& rows, const Columns& columns, bool silu, const T* x, T* y) {
  each_block(rows, [&](int64_t row, int64_t first, auto count) {
    float z[kBlock] = {}, s[kBlock];
    norm_block(columns, first, count, x + row + first, z);
    if (silu) sigmoids(z, s);
    T* const to = y + row + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(to[i], silu ? z[i] * s[i] : z[i]);
  });
}

/// Of y = silu(z): dz = dy s (1 + z (1 - s)).
template <class T>
void rows_norm_backward_sums(const Rows& rows,
                             const Columns& columns,
                             bool silu,
                             const T* dy,
                             const T* x,
                             float* dz,
                             float* sum,
                             float* product) {
  for (int64_t i = 0; i < rows.width; ++i) sum[i] = product[i] = 0;
  each_block(rows, [&](int64_t row, int64_t first, auto count) {
    const T *const from = x + row + first, *const from_dy = dy + row + first;
    float z[kBlock] = {}, s[kBlock];
    if (silu) {
      norm_block(columns, first, count, from, z);
      sigmoids(z, s);
    }
    float* const to = dz + row + first;
    const float* const center = columns.center + first;
    float *const to_sum = sum + first, *const to_product = product + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float slope = silu ? s[i] + z[i] * s[i] * (1.0f - s[i]) : 1.0f;
      const float found = load(from_dy[i]) * slope;
      to[i] = found;
      to_sum[i] += found;
      to_product[i] += found * (load(from[i]) - center[i]);
    }
  });
}

template <class T>
void rows_norm_backward(const Rows& rows,
                        const Columns& columns,
                        const float* slope,
                        const float* dz,
                        const T* x,
                        T* dx) {
  const int64_t width = rows.width;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * width;
    const float* const from_dz = dz + row * width;
    T* const to = dx + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float d = load(from[i]) - columns.center[i];
      store(to[i], from_dz[i] * columns.factor[i] - d * slope[i] - columns.shift[i]);
    }
  }
}

}  // namespace
}  // namespace dalle2::loops

#include "kernels/convolution_body.h"
#include "kernels/flat_update_body.h"
#include "kernels/winograd_body.h"

namespace dalle2::loops {
namespace {

constexpr Table kTable = {
    kFastShapes,
    {&rows_sums<float>,
     &rows_norm<float>,
     &rows_norm_backward_sums<float>,
     &rows_norm_backward<float>},
    {&rows_sums<Half>, &rows_norm<Half>, &rows_norm_backward_sums<Half>, &rows_norm_backward<Half>},
    {&unfold<float>, &fold<float>},
    {&unfold<Half>, &fold<Half>},
    {&wide_forward, &wide_weight_gradient, &wide_sums, &wide_weights_of},
    {&tiles_of_pixels<3, float>, &pixels_of_tiles<3, float>, &tiles_of_gradients<3, float>},
    {&tiles_of_pixels<3, Half>, &pixels_of_tiles<3, Half>, &tiles_of_gradients<3, Half>},
    {kPlaces<3>,
     &tiles_of_weights<3>,
     &tiles_of_filters<3>,
     &weights_of_tiles<3>,
     &tile_product,
     &tile_gradient},
    {&tiles_of_pixels<2, float>, &pixels_of_tiles<2, float>, &tiles_of_gradients<2, float>},
    {&tiles_of_pixels<2, Half>, &pixels_of_tiles<2, Half>, &tiles_of_gradients<2, Half>},
    {kPlaces<2>,
     &tiles_of_weights<2>,
     &tiles_of_filters<2>,
     &weights_of_tiles<2>,
     &tile_product,
     &tile_gradient},
    {&adam, &widen},
};

}  // namespace
}  // namespace dalle2::loops
