// SPDX-License-Identifier: MIT
// Bodies of the loops; each loops_*.cpp includes them once and is compiled for its own instructions. All is
// in an unnamed namespace, so that the linker cannot take one set's functions for another's.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/loops.h"

namespace dalle2::loops {
namespace {

/// Values that one float32 sum takes in, lane by lane; sums of these are float64.
constexpr int64_t kBlock = 4096;

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

/// e^x to 2 units in the last place, for x cut to [-87, 88]: 2^n times a polynomial of the rest (Cephes).
inline float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = bits_as<int32_t>(shifted) - bits_as<int32_t>(kRounder);
  return p * bits_as<float>((exponent + 127) << 23);
}

inline float sigmoid(float z) {
  return 1.0f / (1.0f + exp_of(-z));
}

inline int64_t block_at(int64_t begin, int64_t count) {
  return count - begin < kBlock ? count - begin : kBlock;
}

template <class T>
Moments moments_of(const T* x, int64_t count, double eps) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const T* const block = x + begin;
    const int64_t length = block_at(begin, count);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = 0; i < length; ++i) part += load(block[i]);
    sum += static_cast<double>(part);
  }
  const double mean = sum / static_cast<double>(count);
  const auto center = static_cast<float>(mean);
  double squares = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const T* const block = x + begin;
    const int64_t length = block_at(begin, count);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = 0; i < length; ++i) {
      const float difference = load(block[i]) - center;
      part += difference * difference;
    }
    squares += static_cast<double>(part);
  }
  return {center, static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(count) + eps))};
}

template <class T>
Moments group_norm_silu(const Group& group, double eps, const T* x, T* y) {
  const Moments moments = moments_of(x, group.channels * group.pixels, eps);
  const int64_t pixels = group.pixels;
  for (int64_t c = 0; c < group.channels; ++c) {
    const T* const from = x + c * pixels;
    T* const to = y + c * pixels;
    const float mean = moments.mean, factor = moments.rstd * group.gain[c], shift = group.shift[c];
#pragma omp simd
    for (int64_t i = 0; i < pixels; ++i) {
      const float z = (load(from[i]) - mean) * factor + shift;
      store(to[i], z * sigmoid(z));
    }
  }
  return moments;
}

/// Of z with n = (x - mean) rstd, z = n gain + shift, y = silu(z): dz = dy s (1 + z (1 - s)). With N elements
/// dx = rstd (gain dz - sum(gain dz) / N - n sum(gain dz n) / N).
template <class T>
void group_norm_silu_backward(const Group& group,
                              Moments moments,
                              const T* dy,
                              const T* x,
                              T* dx,
                              float* scratch,
                              float* dgain,
                              float* dshift) {
  const int64_t pixels = group.pixels;
  const float mean = moments.mean, rstd = moments.rstd;
  double sum = 0, product = 0;
  for (int64_t c = 0; c < group.channels; ++c) {
    const float gain = group.gain[c], shift = group.shift[c];
    double of_dz = 0, of_product = 0;
    for (int64_t begin = 0; begin < pixels; begin += kBlock) {
      const T* const block_dy = dy + c * pixels + begin;
      const T* const block_x = x + c * pixels + begin;
      float* const block_dz = scratch + c * pixels + begin;
      const int64_t length = block_at(begin, pixels);
      float part = 0, part_product = 0;
#pragma omp simd reduction(+ : part, part_product)
      for (int64_t i = 0; i < length; ++i) {
        const float n = (load(block_x[i]) - mean) * rstd;
        const float z = n * gain + shift;
        const float s = sigmoid(z);
        const float dz = load(block_dy[i]) * (s + z * s * (1.0f - s));
        block_dz[i] = dz;
        part += dz;
        part_product += dz * n;
      }
      of_dz += static_cast<double>(part);
      of_product += static_cast<double>(part_product);
    }
    dshift[c] = static_cast<float>(of_dz);
    dgain[c] = static_cast<float>(of_product);
    sum += of_dz * static_cast<double>(gain);
    product += of_product * static_cast<double>(gain);
  }
  const auto count = static_cast<double>(group.channels * pixels);
  const auto mean_dn = static_cast<float>(sum / count);
  const auto slope = static_cast<float>(product / count * static_cast<double>(rstd));
  for (int64_t c = 0; c < group.channels; ++c) {
    const T* const from = x + c * pixels;
    const float* const dz = scratch + c * pixels;
    T* const to = dx + c * pixels;
    const float gain = group.gain[c];
#pragma omp simd
    for (int64_t i = 0; i < pixels; ++i) {
      store(to[i], rstd * (gain * dz[i] - mean_dn - (load(from[i]) - mean) * slope));
    }
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

template <class T>
void rows_norm_silu(const Rows& rows, const Columns& columns, const T* x, T* y) {
  const int64_t width = rows.width;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * width;
    T* const to = y + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float z = (load(from[i]) - columns.center[i]) * columns.factor[i] + columns.shift[i];
      store(to[i], z * sigmoid(z));
    }
  }
}

template <class T>
void rows_norm_silu_backward_sums(const Rows& rows,
                                  const Columns& columns,
                                  const T* dy,
                                  const T* x,
                                  float* dz,
                                  float* sum,
                                  float* product) {
  const int64_t width = rows.width;
  for (int64_t i = 0; i < width; ++i) sum[i] = product[i] = 0;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const T* const from = x + row * width;
    const T* const from_dy = dy + row * width;
    float* const to = dz + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float d = load(from[i]) - columns.center[i];
      const float z = d * columns.factor[i] + columns.shift[i];
      const float s = sigmoid(z);
      const float found = load(from_dy[i]) * (s + z * s * (1.0f - s));
      to[i] = found;
      sum[i] += found;
      product[i] += found * d;
    }
  }
}

template <class T>
void rows_norm_silu_backward(const Rows& rows,
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
    {&group_norm_silu<float>, &group_norm_silu_backward<float>},
    {&group_norm_silu<Half>, &group_norm_silu_backward<Half>},
    {&rows_sums<float>,
     &rows_norm_silu<float>,
     &rows_norm_silu_backward_sums<float>,
     &rows_norm_silu_backward<float>},
    {&rows_sums<Half>,
     &rows_norm_silu<Half>,
     &rows_norm_silu_backward_sums<Half>,
     &rows_norm_silu_backward<Half>},
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
