// SPDX-License-Identifier: MIT
// Bodies of the loops of winograd.cpp, for loops_body.h: convolutions with 3x3 taps by 36 instead of 144 products for a
// square of 4x4 pixels, and those with 2x2 taps by 25 instead of 64 (Lavin and Gray 2015). The interpolation points 0,
// +-3/4, +-3/2 round half as much as the usual 0, +-1, +-2 (Barabasz et al. 2018): twice the error of the plain sum, in the
// gradient of the weights five times. Three taps need a sixth point, at infinity.
#include <cstdint>

#include "kernels/loops.h"

namespace dalle2::loops {
namespace {

constexpr float kA = 0.75f, kB = 1.5f;
constexpr float kA2 = kA * kA, kB2 = kB * kB, kA3 = kA2 * kA, kB3 = kB2 * kB;
constexpr float kOf0 = 1.0f / (kA2 * kB2);
constexpr float kOfA = 1.0f / (2.0f * kA2 * (kA2 - kB2)), kOfB = 1.0f / (2.0f * kB2 * (kB2 - kA2));

/// Numbers of a line and of a square of four pixels.
template <int Taps>
inline constexpr int kPoints = Taps + 3;
template <int Taps>
inline constexpr int kPlaces = kPoints<Taps>* kPoints<Taps>;

/// Of as many pixels in a line as there are points. Elements of `to` are `step` apart.
template <int Taps, class V>
inline void of_pixels(const V* from, V* to, int step) {
  const V d0 = from[0], d1 = from[1], d2 = from[2], d3 = from[3], d4 = from[4];
  const V even_a = d4 - kB2 * d2, odd_a = kA * (d3 - kB2 * d1);
  const V even_b = d4 - kA2 * d2, odd_b = kB * (d3 - kA2 * d1);
  to[0] = (kA2 * kB2) * d0 - (kA2 + kB2) * d2 + d4;
  to[step] = even_a + odd_a;
  to[2 * step] = even_a - odd_a;
  to[3 * step] = even_b + odd_b;
  to[4 * step] = even_b - odd_b;
  if constexpr (Taps == 3) {
    to[5 * step] = (kA2 * kB2) * d1 - (kA2 + kB2) * d3 + from[5];
  }
}

/// Of the weights in a line.
template <int Taps, class V>
inline void of_weights(const V* from, V* to, int step) {
  const V g0 = from[0], g1 = from[1];
  V even_a, even_b;
  if constexpr (Taps == 3) {
    const V g2 = from[2];
    even_a = kOfA * g0 + (kOfA * kA2) * g2;
    even_b = kOfB * g0 + (kOfB * kB2) * g2;
    to[5 * step] = g2;
  } else {
    even_a = kOfA * g0;
    even_b = kOfB * g0;
  }
  const V odd_a = (kOfA * kA) * g1, odd_b = (kOfB * kB) * g1;
  to[0] = kOf0 * g0;
  to[step] = even_a + odd_a;
  to[2 * step] = even_a - odd_a;
  to[3 * step] = even_b + odd_b;
  to[4 * step] = even_b - odd_b;
}

/// The transpose of of_weights().
template <int Taps, class V>
inline void to_weights(const V* from, V* to, int step) {
  const V sum_a = from[1] + from[2], difference_a = from[1] - from[2];
  const V sum_b = from[3] + from[4], difference_b = from[3] - from[4];
  to[0] = kOf0 * from[0] + kOfA * sum_a + kOfB * sum_b;
  to[step] = (kOfA * kA) * difference_a + (kOfB * kB) * difference_b;
  if constexpr (Taps == 3) {
    to[2 * step] = (kOfA * kA2) * sum_a + (kOfB * kB2) * sum_b + from[5];
  }
}

/// Four pixels in a line of what the products are.
template <int Taps, class V>
inline void to_pixels(const V* from, V* to, int step) {
  const V sum_a = from[1] + from[2], difference_a = from[1] - from[2];
  const V sum_b = from[3] + from[4], difference_b = from[3] - from[4];
  to[0] = from[0] + sum_a + sum_b;
  to[step] = kA * difference_a + kB * difference_b;
  to[2 * step] = kA2 * sum_a + kB2 * sum_b;
  to[3 * step] = kA3 * difference_a + kB3 * difference_b;
  if constexpr (Taps == 3) to[3 * step] += from[5];
}

/// The transpose of to_pixels().
template <int Taps, class V>
inline void of_gradients(const V* from, V* to, int step) {
  const V y0 = from[0], y1 = from[1], y2 = from[2], y3 = from[3];
  const V even_a = y0 + kA2 * y2, odd_a = kA * y1 + kA3 * y3;
  const V even_b = y0 + kB2 * y2, odd_b = kB * y1 + kB3 * y3;
  to[0] = y0;
  to[step] = even_a + odd_a;
  to[2 * step] = even_a - odd_a;
  to[3 * step] = even_b + odd_b;
  to[4 * step] = even_b - odd_b;
  if constexpr (Taps == 3) to[5 * step] = y3;
}

/// Tiles in a line of pixels of a map.
inline int64_t tiles_in(int64_t pixels, int64_t step) {
  return (pixels / step + 3) / 4;
}

/// Reads a square of `Side` pixels of each tile, zero outside of the map, of kLanes channels each; `transform` works on a
/// line, which makes Points * Points numbers of the square. They go to out + place * step_of_place + tile * row.
/// Few registers hold no square: a line is read, transformed and written at a time.
template <int Side, int Points, class T, class Transform>
inline void transform_tiles(const TileMap& s,
                            int64_t first,
                            int64_t last,
                            const T* map,
                            int64_t step_of_place,
                            int64_t row,
                            float* out,
                            const Transform& transform) {
  const int64_t c = s.channels, across = tiles_in(s.width, s.step),
                down = tiles_in(s.height, s.step);
  const int64_t reach = (Side - 1) * s.step, right = s.step * c, below = right * s.width;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t sample = tile / (across * down);
    const int64_t y = tile / across % down * 4 * s.step - s.top,
                  x = tile % across * 4 * s.step - s.left;
    const T* const from = map + ((sample * s.height + y) * s.width + x) * c;
    const bool inside = y >= 0 && x >= 0 && y + reach < s.height && x + reach < s.width;
    const auto is_in = [&](int ky, int kx) {
      const int64_t at_y = y + ky * s.step, at_x = x + kx * s.step;
      return at_y >= 0 && at_y < s.height && at_x >= 0 && at_x < s.width;
    };
    for (int64_t i = 0; i < c; i += kLanes) {
      Vector half[Points * Side];
      for (int kx = 0; kx < Side; ++kx) {
        Vector pixels[Side];
        const T* pixel = from + kx * right + i;
        for (int ky = 0; ky < Side; ++ky, pixel += below)
          pixels[ky] = inside || is_in(ky, kx) ? load_vector(pixel) : Vector{};
        transform(pixels, half + kx, Side);
      }
      float* to = out + (tile - first) * row + i;
      for (int ky = 0; ky < Points; ++ky) {
        Vector line[Points];
        transform(half + ky * Side, line, 1);
        for (int kx = 0; kx < Points; ++kx, to += step_of_place) store_vector(to, line[kx]);
      }
    }
  }
}

template <int Taps, class T>
void tiles_of_pixels(const TileMap& s,
                     int64_t first,
                     int64_t last,
                     int64_t step_of_place,
                     int64_t row,
                     const T* x,
                     float* v) {
  constexpr int kSide = kPoints<Taps>;
  transform_tiles<kSide, kSide>(
      s, first, last, x, step_of_place, row, v, [](const Vector* from, Vector* to, int to_step) {
        of_pixels<Taps>(from, to, to_step);
      });
}

template <int Taps, class T>
void tiles_of_gradients(
    const TileMap& s, int64_t first, int64_t last, int64_t step_of_place, const T* dy, float* z) {
  transform_tiles<4, kPoints<Taps>>(
      s,
      first,
      last,
      dy,
      step_of_place,
      s.channels,
      z,
      [](const Vector* from, Vector* to, int to_step) { of_gradients<Taps>(from, to, to_step); });
}

template <int Taps, class T>
void pixels_of_tiles(const TileMap& s,
                     int64_t first,
                     int64_t last,
                     int64_t step_of_place,
                     int64_t width,
                     const float* m,
                     const float* bias,
                     T* y) {
  constexpr int kSide = kPoints<Taps>;
  const int64_t c = s.channels, across = tiles_in(s.width, s.step),
                down = tiles_in(s.height, s.step);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t sample = tile / (across * down);
    const int64_t row = tile / across % down * 4 * s.step - s.top,
                  column = tile % across * 4 * s.step - s.left;
    const int64_t rows_left = (s.height - row + s.step - 1) / s.step,
                  rows = rows_left < 4 ? rows_left : 4;
    const int64_t columns_left = (s.width - column + s.step - 1) / s.step;
    const int64_t columns = columns_left < 4 ? columns_left : 4;
    T* const to = y + ((sample * s.height + row) * s.width + column) * c;
    const float* const from = m + (tile - first) * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      Vector half[4 * kSide];
      for (int kx = 0; kx < kSide; ++kx) {
        Vector places[kSide];
        for (int ky = 0; ky < kSide; ++ky)
          places[ky] = load_vector(from + (ky * kSide + kx) * step_of_place + i);
        to_pixels<Taps>(places, half + kx, kSide);
      }
      const Vector add = bias != nullptr ? load_vector(bias + i) : Vector{};
      for (int64_t ky = 0; ky < rows; ++ky) {
        Vector pixels[4];
        to_pixels<Taps>(half + ky * kSide, pixels, 1);
        for (int64_t kx = 0; kx < columns; ++kx)
          store_vector(to + (ky * s.width + kx) * s.step * c + i, pixels[kx] + add);
      }
    }
  }
}

/// The numbers of the taps of a filter, kLanes channels from `w` on, to places that are `step` apart.
template <int Taps>
inline void tile_of_filter(const float* w, const FilterTaps& taps, int64_t step, float* to) {
  Vector half[kPoints<Taps> * Taps];
  for (int kx = 0; kx < Taps; ++kx) {
    Vector g[Taps];
    for (int ky = 0; ky < Taps; ++ky)
      g[ky] = load_vector(w + taps.first + ky * taps.row + kx * taps.column);
    of_weights<Taps>(g, half + kx, Taps);
  }
  for (int ky = 0; ky < kPoints<Taps>; ++ky) {
    Vector line[kPoints<Taps>];
    of_weights<Taps>(half + ky * Taps, line, 1);
    for (int kx = 0; kx < kPoints<Taps>; ++kx, to += step) store_vector(to, line[kx]);
  }
}

/// The rows of a square become its columns, by halves, quarters, ... of it.
template <int64_t Half>
inline void turn(Vector* rows) {
  if constexpr (Half > 0) {
    using Places = int32_t __attribute__((vector_size(4 * kLanes)));
    Places upper, lower;
    for (int64_t i = 0; i < kLanes; ++i) {
      upper[i] = static_cast<int32_t>((i & Half) != 0 ? kLanes + i - Half : i);
      lower[i] = static_cast<int32_t>((i & Half) != 0 ? kLanes + i : i + Half);
    }
    for (int64_t row = 0; row < kLanes; ++row) {
      if ((row & Half) != 0) continue;
      const Vector a = rows[row], b = rows[row + Half];
      rows[row] = __builtin_shuffle(a, b, upper);
      rows[row + Half] = __builtin_shuffle(a, b, lower);
    }
    turn<Half / 2>(rows);
  }
}

// Sixteen by sixteen (kLanes) at a time, turned: filters [out] of channels [in] -> [places, in, out].
template <int Taps>
void tiles_of_weights(const FilterTaps& taps,
                      int64_t first,
                      int64_t last,
                      int64_t out,
                      int64_t step_of_place,
                      const float* w,
                      float* u) {
  for (int64_t i = first; i < last; i += kLanes) {
    for (int64_t o = 0; o < out; o += kLanes) {
      float block[Taps * Taps][kLanes][kLanes];  // of taps, channels and filters
      for (int tap = 0; tap < Taps * Taps; ++tap) {
        const float* from =
            w + o * taps.filter + taps.first + tap / Taps * taps.row + tap % Taps * taps.column + i;
        Vector rows[kLanes];
        for (int64_t row = 0; row < kLanes; ++row, from += taps.filter)
          rows[row] = load_vector(from);
        turn<kLanes / 2>(rows);
        for (int64_t channel = 0; channel < kLanes; ++channel)
          store_vector(block[tap][channel], rows[channel]);
      }
      constexpr int64_t kTap = kLanes * kLanes;
      for (int64_t channel = 0; channel < kLanes; ++channel) {
        tile_of_filter<Taps>(block[0][channel],
                             {.filter = 0, .first = 0, .row = Taps * kTap, .column = kTap},
                             step_of_place,
                             u + (i + channel) * out + o);
      }
    }
  }
}

// Filters [out] of channels [width] -> [places, out, width]: for the gradient of the pixels.
template <int Taps>
void tiles_of_filters(const FilterTaps& taps,
                      int64_t first,
                      int64_t last,
                      int64_t step_of_place,
                      int64_t width,
                      const float* w,
                      float* u) {
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < width; i += kLanes)
      tile_of_filter<Taps>(w + o * taps.filter + i, taps, step_of_place, u + o * width + i);
  }
}

// Turns [places, out, row] into `out` filters of `in` channels. Only the first `in` numbers of each row are read.
template <int Taps>
void weights_of_tiles(const FilterTaps& taps,
                      int64_t first,
                      int64_t last,
                      int64_t step_of_place,
                      int64_t in,
                      int64_t row,
                      const float* u,
                      float* w) {
  constexpr int kSide = kPoints<Taps>;
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < in; i += kLanes) {
      Vector half[Taps * kSide];
      const float* from = u + o * row + i;
      for (int kx = 0; kx < kSide; ++kx, from += step_of_place) {
        Vector places[kSide];
        for (int ky = 0; ky < kSide; ++ky)
          places[ky] = load_vector(from + ky * kSide * step_of_place);
        to_weights<Taps>(places, half + kx, kSide);
      }
      float* const to = w + o * taps.filter + taps.first + i;
      for (int ky = 0; ky < Taps; ++ky) {
        Vector g[Taps];
        to_weights<Taps>(half + ky * kSide, g, 1);
        for (int kx = 0; kx < Taps; ++kx)
          store_vector(to + ky * taps.row + kx * taps.column, g[kx]);
      }
    }
  }
}

// `Rows` by `Across` vectors of sums stay in registers. c[r, n] (+)= sum over k of a(r, k) b[k, n]; a(r, k) lies at
// a + r * a_row + k * a_step.
template <int Rows, int Across, bool Adds>
inline void product_tile(int64_t depth,
                         const float* a,
                         int64_t a_row,
                         int64_t a_step,
                         const float* b,
                         int64_t n,
                         float* c) {
  Vector sum[Rows][Across];
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < Across; ++j) {
      sum[r][j] = Adds ? load_vector(c + r * n + j * kLanes) : Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += a_step, b += n) {
    Vector right[Across];
    for (int j = 0; j < Across; ++j) right[j] = load_vector(b + j * kLanes);
    for (int r = 0; r < Rows; ++r) {
      for (int j = 0; j < Across; ++j) sum[r][j] += right[j] * a[r * a_row];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < Across; ++j) store_vector(c + r * n + j * kLanes, sum[r][j]);
  }
}

template <int Rows, int Across, bool Adds>
inline void product_column(int64_t m,
                           int64_t depth,
                           const float* a,
                           int64_t a_row,
                           int64_t a_step,
                           const float* b,
                           int64_t n,
                           float* c) {
  int64_t row = 0;
  for (; row + Rows <= m; row += Rows) {
    product_tile<Rows, Across, Adds>(depth, a + row * a_row, a_row, a_step, b, n, c + row * n);
  }
  for (; row < m; ++row) {
    product_tile<1, Across, Adds>(depth, a + row * a_row, a_row, a_step, b, n, c + row * n);
  }
}

template <bool Adds>
inline void product(int64_t m,
                    int64_t n,
                    int64_t depth,
                    const float* a,
                    int64_t a_row,
                    int64_t a_step,
                    const float* b,
                    float* c) {
  // The sums and their operands fill the registers: 32 with AVX-512, 16 without.
  constexpr bool kManyRegisters = kLanes == 16;
  constexpr int kRows = kManyRegisters ? 12 : 6;
  int64_t at = 0;
  if constexpr (kManyRegisters) {
    for (; at + 4 * kLanes <= n; at += 4 * kLanes) {
      product_column<6, 4, Adds>(m, depth, a, a_row, a_step, b + at, n, c + at);
    }
  }
  for (; at + 2 * kLanes <= n; at += 2 * kLanes) {
    product_column<kRows, 2, Adds>(m, depth, a, a_row, a_step, b + at, n, c + at);
  }
  for (; at < n; at += kLanes) {
    product_column<12, 1, Adds>(m, depth, a, a_row, a_step, b + at, n, c + at);
  }
}

void tile_product(
    int64_t tiles, int64_t in, int64_t out, const float* v, const float* u, float* m) {
  product<false>(tiles, out, in, v, in, 1, u, m);
}

void tile_gradient(int64_t tiles,
                   int64_t out,
                   int64_t z_row,
                   int64_t in,
                   const float* z,
                   const float* v,
                   float* u) {
  product<true>(out, in, tiles, z, 1, z_row, v, u);
}

}  // namespace
}  // namespace dalle2::loops
