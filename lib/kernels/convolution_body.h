// SPDX-License-Identifier: MIT
// Bodies of the loops of convolution.cpp, for loops_body.h.
#include <cstdint>
#include <cstring>

#include "kernels/loops.h"

namespace dalle2::loops {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
constexpr int kTile = 4;  // vectors a side: 16 sums and their operands fill the registers
constexpr FastShapes kFastShapes = {1, 64};
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
constexpr int kTile = 3;
constexpr FastShapes kFastShapes = {8, 64};
#else
constexpr int64_t kLanes = 4;
constexpr int kTile = 3;
constexpr FastShapes kFastShapes = {INT64_MAX, 0};  // not measured
#endif
using Vector = float __attribute__((vector_size(4 * kLanes)));

inline Vector load_vector(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
inline void store_vector(float* to, const Vector& v) {
  std::memcpy(to, &v, sizeof(v));
}

using HalfBits = uint16_t __attribute__((vector_size(2 * kLanes)));
using FloatBits = uint32_t __attribute__((vector_size(4 * kLanes)));

inline Vector load_vector(const Half* from) {
  HalfBits half;
  std::memcpy(&half, from, sizeof(half));
  return reinterpret_cast<Vector>(__builtin_convertvector(half, FloatBits) << 16);
}
/// Rounds as store() does.
inline void store_vector(Half* to, const Vector& v) {
  const auto bits = reinterpret_cast<FloatBits>(v);
  const FloatBits rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const FloatBits with_nan = v != v ? FloatBits{} + 0x7FC0u : rounded;
  const HalfBits half = __builtin_convertvector(with_nan, HalfBits);
  std::memcpy(to, &half, sizeof(half));
}

template <class T>
void unfold(const Patches& p, int64_t first, int64_t last, const T* x, T* rows) {
  const int64_t c = p.channels, from_center = p.kernel / 2;
  T* to = rows + first * p.kernel * p.kernel * c;
  for (int64_t pixel = first; pixel < last; ++pixel) {
    const int64_t column = pixel % p.width, row = pixel / p.width % p.height;
    for (int64_t ky = row - from_center; ky < row - from_center + p.kernel; ++ky) {
      for (int64_t kx = column - from_center; kx < column - from_center + p.kernel; ++kx, to += c) {
        const bool inside = ky >= 0 && ky < p.height && kx >= 0 && kx < p.width;
        const auto bytes = static_cast<size_t>(c) * sizeof(T);
        if (inside) {
          std::memcpy(to, x + (pixel + (ky - row) * p.width + kx - column) * c, bytes);
        } else {
          std::memset(to, 0, bytes);
        }
      }
    }
  }
}

template <class T>
void fold(const Patches& p, int64_t first, int64_t last, const T* rows, T* x, float* scratch) {
  const int64_t c = p.channels, from_center = p.kernel / 2, length = p.kernel * p.kernel * c;
  for (int64_t pixel = first; pixel < last; ++pixel) {
    const int64_t column = pixel % p.width, row = pixel / p.width % p.height;
    std::memset(scratch, 0, static_cast<size_t>(c) * sizeof(float));
    for (int64_t ky = 0; ky < p.kernel; ++ky) {
      for (int64_t kx = 0; kx < p.kernel; ++kx) {
        // The pixel whose patch has this one at (ky, kx).
        const int64_t y = row - ky + from_center, at = column - kx + from_center;
        if (y < 0 || y >= p.height || at < 0 || at >= p.width) continue;
        const T* const from =
            rows + (pixel + (y - row) * p.width + at - column) * length + (ky * p.kernel + kx) * c;
#pragma omp simd
        for (int64_t i = 0; i < c; ++i) scratch[i] += load(from[i]);
      }
    }
    T* const to = x + pixel * c;
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) store(to[i], scratch[i]);
  }
}

// A tile is kWideOut maps by kTile vectors of pixels.
void wide_forward(
    const WideShape& s, const float* x, const float* weight, const float* bias, float* y) {
  for (int64_t out = 0; out < s.out; out += kWideOut) {
    const float* const own = weight + out * s.in * s.kernel * s.kernel;
    for (int64_t pixel = 0; pixel < s.width; pixel += kTile * kLanes) {
      Vector sum[kWideOut][kTile];
      for (int o = 0; o < kWideOut; ++o) {
        for (int t = 0; t < kTile; ++t) sum[o][t] = Vector{} + bias[out + o];
      }
      const float* w = own;
      for (int64_t in = 0; in < s.in; ++in) {
        for (int64_t ky = 0; ky < s.kernel; ++ky) {
          const float* from = x + in * s.plane + ky * s.stride + pixel;
          for (int64_t kx = 0; kx < s.kernel; ++kx, ++from, w += kWideOut) {
            Vector v[kTile];
            for (int t = 0; t < kTile; ++t) v[t] = load_vector(from + t * kLanes);
            for (int o = 0; o < kWideOut; ++o) {
              for (int t = 0; t < kTile; ++t) sum[o][t] += v[t] * w[o];
            }
          }
        }
      }
      for (int o = 0; o < kWideOut; ++o) {
        for (int t = 0; t < kTile; ++t) {
          store_vector(y + (out + o) * s.out_stride + pixel + t * kLanes, sum[o][t]);
        }
      }
    }
  }
}

// For each vector of pixels kWideOut maps by kTile places of the kernel.
void wide_weight_gradient(
    const WideShape& s, int64_t rows, const float* x, const float* dy, float* sums) {
  const int64_t places = (s.kernel + kTile - 1) / kTile;
  float* at = sums;
  for (int64_t out = 0; out < s.out; out += kWideOut) {
    for (int64_t ky = 0; ky < s.kernel; ++ky) {
      for (int64_t place = 0; place < places; ++place) {
        Vector sum[kWideOut][kTile];
        for (int o = 0; o < kWideOut; ++o) {
          for (int t = 0; t < kTile; ++t) sum[o][t] = load_vector(at + (o * kTile + t) * kLanes);
        }
        for (int64_t row = 0; row < rows; ++row) {
          const float* from = x + (row + ky) * s.stride + place * kTile;
          const float* from_dy = dy + (row * s.out + out) * s.out_stride;
          for (int64_t pixel = 0; pixel < s.width; pixel += kLanes) {
            Vector d[kWideOut];
            for (int o = 0; o < kWideOut; ++o) {
              d[o] = load_vector(from_dy + o * s.out_stride + pixel);
            }
            for (int t = 0; t < kTile; ++t) {
              const Vector v = load_vector(from + pixel + t);
              for (int o = 0; o < kWideOut; ++o) sum[o][t] += d[o] * v;
            }
          }
        }
        for (int o = 0; o < kWideOut; ++o) {
          for (int t = 0; t < kTile; ++t, at += kLanes) store_vector(at, sum[o][t]);
        }
      }
    }
  }
}

void wide_weights_of(const WideShape& s, const float* sums, double* weights) {
  const int64_t places = (s.kernel + kTile - 1) / kTile;
  for (int64_t out = 0; out < s.out; ++out) {
    for (int64_t ky = 0; ky < s.kernel; ++ky) {
      for (int64_t kx = 0; kx < s.kernel; ++kx) {
        const int64_t tile = (out / kWideOut * s.kernel + ky) * places + kx / kTile;
        const float* const lanes =
            sums + ((tile * kWideOut + out % kWideOut) * kTile + kx % kTile) * kLanes;
        double sum = 0;
        for (int64_t i = 0; i < kLanes; ++i) sum += static_cast<double>(lanes[i]);
        weights[(out * s.kernel + ky) * s.kernel + kx] += sum;
      }
    }
  }
}

int64_t wide_sums(const WideShape& s) {
  return s.out * s.kernel * ((s.kernel + kTile - 1) / kTile) * kTile * kLanes;
}

}  // namespace
}  // namespace dalle2::loops
