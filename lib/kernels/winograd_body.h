// SPDX-License-Identifier: MIT
// Bodies of the loops of winograd.cpp, for loops_body.h: 3x3 convolutions by 36 instead of 144 products for a
// square of 4x4 pixels (Lavin and Gray 2015). The interpolation points 0, +-3/4, +-3/2 round half as much as the
// usual 0, +-1, +-2 (Barabasz et al. 2018): twice the error of the plain sum.
#include <cstdint>

#include "kernels/loops.h"

namespace dalle2::loops {
namespace {

constexpr float kA = 0.75f, kB = 1.5f;
constexpr float kA2 = kA * kA, kB2 = kB * kB, kA3 = kA2 * kA, kB3 = kB2 * kB;
constexpr float kOf0 = 1.0f / (kA2 * kB2);
constexpr float kOfA = 1.0f / (2.0f * kA2 * (kA2 - kB2)), kOfB = 1.0f / (2.0f * kB2 * (kB2 - kA2));

/// Of six pixels in a line. Elements of `to` and `from` are `step` apart.
template <class V>
inline void of_pixels(const V* from, int step, V* to, int to_step) {
  const V d0 = from[0], d1 = from[step], d2 = from[2 * step];
  const V d3 = from[3 * step], d4 = from[4 * step], d5 = from[5 * step];
  const V even_a = d4 - kB2 * d2, odd_a = kA * (d3 - kB2 * d1);
  const V even_b = d4 - kA2 * d2, odd_b = kB * (d3 - kA2 * d1);
  to[0] = (kA2 * kB2) * d0 - (kA2 + kB2) * d2 + d4;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = (kA2 * kB2) * d1 - (kA2 + kB2) * d3 + d5;
}

/// Of three weights in a line.
template <class V>
inline void of_weights(const V* from, int step, V* to, int to_step) {
  const V g0 = from[0], g1 = from[step], g2 = from[2 * step];
  const V even_a = kOfA * g0 + (kOfA * kA2) * g2, odd_a = (kOfA * kA) * g1;
  const V even_b = kOfB * g0 + (kOfB * kB2) * g2, odd_b = (kOfB * kB) * g1;
  to[0] = kOf0 * g0;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = g2;
}

/// The transpose of of_weights().
template <class V>
inline void to_weights(const V* from, int step, V* to, int to_step) {
  const V sum_a = from[step] + from[2 * step], difference_a = from[step] - from[2 * step];
  const V sum_b = from[3 * step] + from[4 * step], difference_b = from[3 * step] - from[4 * step];
  to[0] = kOf0 * from[0] + kOfA * sum_a + kOfB * sum_b;
  to[to_step] = (kOfA * kA) * difference_a + (kOfB * kB) * difference_b;
  to[2 * to_step] = (kOfA * kA2) * sum_a + (kOfB * kB2) * sum_b + from[5 * step];
}

/// Four pixels in a line of what the six products are.
template <class V>
inline void to_pixels(const V* from, int step, V* to, int to_step) {
  const V sum_a = from[step] + from[2 * step], difference_a = from[step] - from[2 * step];
  const V sum_b = from[3 * step] + from[4 * step], difference_b = from[3 * step] - from[4 * step];
  to[0] = from[0] + sum_a + sum_b;
  to[to_step] = kA * difference_a + kB * difference_b;
  to[2 * to_step] = kA2 * sum_a + kB2 * sum_b;
  to[3 * to_step] = kA3 * difference_a + kB3 * difference_b + from[5 * step];
}

/// The transpose of to_pixels().
template <class V>
inline void of_gradients(const V* from, int step, V* to, int to_step) {
  const V y0 = from[0], y1 = from[step], y2 = from[2 * step], y3 = from[3 * step];
  const V even_a = y0 + kA2 * y2, odd_a = kA * y1 + kA3 * y3;
  const V even_b = y0 + kB2 * y2, odd_b = kB * y1 + kB3 * y3;
  to[0] = y0;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = y3;
}

/// Reads a square of `Side` pixels at (y, x), zero outside of the map, of each kLanes channels; `transform` works
/// on a line, which makes 36 numbers of the square. They go to out + place * step_of_place + tile * channels.
template <int Side, class T, class Transform>
inline void transform_tiles(const TileMap& s,
                            int64_t first,
                            int64_t last,
                            int64_t offset,
                            const T* map,
                            int64_t step_of_place,
                            float* out,
                            const Transform& transform) {
  const int64_t c = s.channels, across = (s.width + 3) / 4, down = (s.height + 3) / 4;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t sample = tile / (across * down);
    const int64_t y = tile / across % down * 4 - offset, x = tile % across * 4 - offset;
    const T* const from = map + ((sample * s.height + y) * s.width + x) * c;
    const bool inside = y >= 0 && x >= 0 && y + Side <= s.height && x + Side <= s.width;
    float* const to = out + (tile - first) * c;
    for (int64_t i = 0; i < c; i += kLanes) {
      Vector pixels[Side * Side], half[6 * Side], whole[36];
      if (inside) {
        for (int ky = 0; ky < Side; ++ky) {
          for (int kx = 0; kx < Side; ++kx) {
            pixels[ky * Side + kx] = load_vector(from + (ky * s.width + kx) * c + i);
          }
        }
      } else {
        for (int ky = 0; ky < Side; ++ky) {
          for (int kx = 0; kx < Side; ++kx) {
            const bool in = y + ky >= 0 && y + ky < s.height && x + kx >= 0 && x + kx < s.width;
            pixels[ky * Side + kx] =
                in ? load_vector(from + (ky * s.width + kx) * c + i) : Vector{};
          }
        }
      }
      for (int kx = 0; kx < Side; ++kx) transform(pixels + kx, Side, half + kx, Side);
      for (int ky = 0; ky < 6; ++ky) transform(half + ky * Side, 1, whole + ky * 6, 1);
      for (int place = 0; place < 36; ++place)
        store_vector(to + place * step_of_place + i, whole[place]);
    }
  }
}

template <class T>
void tiles_of_pixels(
    const TileMap& s, int64_t first, int64_t last, int64_t step_of_place, const T* x, float* v) {
  transform_tiles<6>(s,
                     first,
                     last,
                     1,
                     x,
                     step_of_place,
                     v,
                     [](const Vector* from, int step, Vector* to, int to_step) {
                       of_pixels(from, step, to, to_step);
                     });
}

template <class T>
void tiles_of_gradients(
    const TileMap& s, int64_t first, int64_t last, int64_t step_of_place, const T* dy, float* z) {
  transform_tiles<4>(s,
                     first,
                     last,
                     0,
                     dy,
                     step_of_place,
                     z,
                     [](const Vector* from, int step, Vector* to, int to_step) {
                       of_gradients(from, step, to, to_step);
                     });
}

template <class T>
void pixels_of_tiles(const TileMap& s,
                     int64_t first,
                     int64_t last,
                     int64_t step_of_place,
                     int64_t width,
                     const float* m,
                     const float* bias,
                     T* y) {
  const int64_t c = s.channels, across = (s.width + 3) / 4, down = (s.height + 3) / 4;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t sample = tile / (across * down);
    const int64_t row = tile / across % down * 4, column = tile % across * 4;
    const int64_t rows = s.height - row < 4 ? s.height - row : 4;
    const int64_t columns = s.width - column < 4 ? s.width - column : 4;
    T* const to = y + ((sample * s.height + row) * s.width + column) * c;
    const float* const from = m + (tile - first) * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      Vector whole[36], half[24], pixels[16];
      for (int place = 0; place < 36; ++place)
        whole[place] = load_vector(from + place * step_of_place + i);
      for (int kx = 0; kx < 6; ++kx) to_pixels(whole + kx, 6, half + kx, 6);
      for (int ky = 0; ky < 4; ++ky) to_pixels(half + ky * 6, 1, pixels + ky * 4, 1);
      const Vector add = bias != nullptr ? load_vector(bias + i) : Vector{};
      for (int64_t ky = 0; ky < rows; ++ky) {
        for (int64_t kx = 0; kx < columns; ++kx) {
          store_vector(to + (ky * s.width + kx) * c + i, pixels[ky * 4 + kx] + add);
        }
      }
    }
  }
}

inline void weights_at(const float* w, int64_t in, bool flipped, Vector* whole) {
  Vector g[9], half[18];
  for (int place = 0; place < 9; ++place)
    g[place] = load_vector(w + (flipped ? 8 - place : place) * in);
  for (int kx = 0; kx < 3; ++kx) of_weights(g + kx, 3, half + kx, 3);
  for (int ky = 0; ky < 6; ++ky) of_weights(half + ky * 3, 1, whole + ky * 6, 1);
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

// Sixteen by sixteen (kLanes) at a time, turned: [out, 3, 3, in] -> [36, in, out].
void tiles_of_weights(
    int64_t first, int64_t last, int64_t out, int64_t in, const float* w, float* u) {
  for (int64_t i = first; i < last; i += kLanes) {
    for (int64_t o = 0; o < out; o += kLanes) {
      float block[36][kLanes][kLanes];
      for (int64_t row = 0; row < kLanes; ++row) {
        Vector whole[36];
        weights_at(w + (o + row) * 9 * in + i, in, false, whole);
        for (int place = 0; place < 36; ++place) store_vector(block[place][row], whole[place]);
      }
      for (int place = 0; place < 36; ++place) {
        float* const to = u + (place * in + i) * out + o;
        Vector rows[kLanes];
        for (int64_t row = 0; row < kLanes; ++row) rows[row] = load_vector(block[place][row]);
        turn<kLanes / 2>(rows);
        for (int64_t column = 0; column < kLanes; ++column) {
          store_vector(to + column * out, rows[column]);
        }
      }
    }
  }
}

// [out, 3, 3, in] -> [36, out, width], turned by half a circle: for the gradient of the pixels.
void tiles_of_flipped_weights(
    int64_t first, int64_t last, int64_t out, int64_t in, int64_t width, const float* w, float* u) {
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < width; i += kLanes) {
      Vector whole[36];
      weights_at(w + o * 9 * in + i, in, true, whole);
      for (int place = 0; place < 36; ++place) {
        store_vector(u + (place * out + o) * width + i, whole[place]);
      }
    }
  }
}

// [36, out, in] -> [out, 3, 3, in]
void weights_of_tiles(
    int64_t first, int64_t last, int64_t out, int64_t in, const float* u, float* w) {
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < in; i += kLanes) {
      Vector whole[36], half[18], g[9];
      for (int place = 0; place < 36; ++place)
        whole[place] = load_vector(u + (place * out + o) * in + i);
      for (int kx = 0; kx < 6; ++kx) to_weights(whole + kx, 6, half + kx, 6);
      for (int ky = 0; ky < 3; ++ky) to_weights(half + ky * 6, 1, g + ky * 3, 1);
      for (int place = 0; place < 9; ++place) store_vector(w + (o * 9 + place) * in + i, g[place]);
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
