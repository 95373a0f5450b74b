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

/// Channels-last pixels [rows, width]. Where a pixel has few channels, a row is several
/// pixels, so that the inner loops are long.
struct Rows {
  int64_t rows;
  int64_t width;
};

/// What each column of the rows takes part in: z = (x - center) factor + shift. All [width].
struct Columns {
  const float* center;
  const float* factor;
  const float* shift;
};

/// GroupNorm in parts, for channels-last maps of elements T. y = silu(z), or z where `silu` is false.
template <class T>
struct RowsNorm {
  /// sum and squares: of x - center, by columns
  void (*sums)(const Rows& rows, const T* x, const float* center, float* sum, float* squares);
  void (*forward)(const Rows& rows, const Columns& columns, bool silu, const T* x, T* y);
  /// dz of dy, and the sums of dz and of dz (x - center) by columns. @param dz [rows, width]
  void (*backward_sums)(const Rows& rows,
                        const Columns& columns,
                        bool silu,
                        const T* dy,
                        const T* x,
                        float* dz,
                        float* sum,
                        float* product);
  /// dx = dz factor - (x - center) slope - base; `shift` of the columns is `base`
  void (*backward)(const Rows& rows,
                   const Columns& columns,
                   const float* slope,
                   const float* dz,
                   const T* x,
                   T* dx);
};

/// Maps [B, H, W, channels] and the square around each pixel, zero outside of the map.
struct Patches {
  int64_t height, width, channels;
  int64_t kernel;  ///< odd
};

template <class T>
struct Unfold {
  /// [B H W, channels] -> [B H W, kernel, kernel, channels], of pixels first to last
  void (*unfold)(const Patches& patches, int64_t first, int64_t last, const T* x, T* rows);
  /// Adds each pixel up from all squares that it is in. @param scratch [channels]
  void (*fold)(
      const Patches& patches, int64_t first, int64_t last, const T* rows, T* x, float* scratch);
};

/// A convolution with a large kernel of few maps to few, of stride 1: the inner loops run along the pixels
/// of a row. Rows are padded: reading or writing a whole tile too much has to be allowed.
struct WideShape {
  int64_t in, out;  ///< maps; `out` a multiple of kWideOut
  int64_t width;    ///< of a row
  int64_t kernel;
  int64_t plane;       ///< from one map of x to the next
  int64_t stride;      ///< from one row of x to the next
  int64_t out_stride;  ///< from one map of y to the next
};
inline constexpr int kWideOut = 4;
inline constexpr int64_t kWideSlack = 64;  ///< of the rows: more than any tile

struct WideConvolution {
  /// A row of all maps. @param x the first row that the kernel reaches, padded
  /// @param weight [out / kWideOut, in, kernel, kernel, kWideOut] @param y [out, width]
  void (*forward)(
      const WideShape& shape, const float* x, const float* weight, const float* bias, float* y);
  /// Adds to the sums of a map of x. @param x [rows + kernel - 1, width + kernel - 1], padded
  /// @param dy [rows, out, width], zero in the padding
  void (*weight_gradient)(
      const WideShape& shape, int64_t rows, const float* x, const float* dy, float* sums);
  /// The number of sums, and what they are sums of: adds to [out, kernel, kernel].
  int64_t (*sums)(const WideShape& shape);
  void (*weights_of)(const WideShape& shape, const float* sums, double* weights);
};

/// A map [B, H, W, channels] in tiles of 4x4 pixels, numbered over all samples; `channels` is a multiple of
/// kTileChannels. In line t of tiles, pixel k lies at step * (4 t + k) - top, or - left. `step` divides both sides.
struct TileMap {
  int64_t height, width, channels;
  int64_t step = 1, top = 0, left = 0;
};
inline constexpr int64_t kTileChannels = 16;

/// Between maps of one type and their tiles in float32. What belongs to tiles `first` to `last` is, for each place of a
/// tile, [last - first, channels]; places are `step` apart.
template <class T>
struct WinogradMaps {
  /// @param row the numbers from a tile to the next, at least the map's channels
  void (*tiles_of_pixels)(const TileMap& map,
                          int64_t first,
                          int64_t last,
                          int64_t step,
                          int64_t row,
                          const T* x,
                          float* v);
  /// Of `width` channels, those of m, of the map's. @param bias [width] or null
  void (*pixels_of_tiles)(const TileMap& map,
                          int64_t first,
                          int64_t last,
                          int64_t step,
                          int64_t width,
                          const float* m,
                          const float* bias,
                          T* y);
  void (*tiles_of_gradients)(
      const TileMap& map, int64_t first, int64_t last, int64_t step, const T* dy, float* z);
};

/// Where the weights of a channel lie, in numbers: from a filter to the next, to the first tap, from a row of taps to the
/// next, and from a column to the next.
struct FilterTaps {
  int64_t filter, first, row, column;
};

/// The other parts of a convolution by tiles.
struct Winograd {
  int64_t places;  ///< of a tile
  /// Filters -> [places, in, out], of the channels `first` to `last` of `in`; places are `step` apart, here and below
  void (*tiles_of_weights)(const FilterTaps& taps,
                           int64_t first,
                           int64_t last,
                           int64_t out,
                           int64_t step,
                           const float* w,
                           float* u);
  /// Filters -> [places, out, width], of the filters `first` to `last` of `out` and the first `width` channels
  void (*tiles_of_filters)(const FilterTaps& taps,
                           int64_t first,
                           int64_t last,
                           int64_t step,
                           int64_t width,
                           const float* w,
                           float* u);
  /// [places, out, row] -> `in` channels of filters, of the filters `first` to `last` of `out`
  void (*weights_of_tiles)(const FilterTaps& taps,
                           int64_t first,
                           int64_t last,
                           int64_t step,
                           int64_t in,
                           int64_t row,
                           const float* u,
                           float* w);
  /// m = v u: [tiles, in] [in, out] -> [tiles, out]
  void (*product)(int64_t tiles, int64_t in, int64_t out, const float* v, const float* u, float* m);
  /// u += z^T v: [tiles, out] [tiles, in] -> [out, in]. Rows of z are z_row apart.
  void (*gradient)(int64_t tiles,
                   int64_t out,
                   int64_t z_row,
                   int64_t in,
                   const float* z,
                   const float* v,
                   float* u);
};

/// One update by Adam, or AdamW (Loshchilov & Hutter 2019, algorithm 2), with its t-th step's corrections of bias.
struct AdamStep {
  float grad_factor;    ///< what gradients are multiplied by first
  float kept;           ///< 1 - lr weight_decay: what the weights are multiplied by
  float taken1;         ///< 1 - beta1: the share of the gradient in the first moment
  float beta2, taken2;  ///< of the second moment, and 1 - beta2
  float step_size;      ///< lr / (1 - beta1^t)
  float root_factor;    ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float average_weight;  ///< the share of the new weights in their average
};

/// Stretches of flat buffers, of which none overlaps another.
struct AdamBuffers {
  float* weights;
  const float* grads;
  float* exp_avg;
  float* exp_avg_sq;
  float* average;  ///< null: there is none
  Half* halves;    ///< null: the weights are not wanted in bfloat16
};

struct FlatUpdate {
  void (*adam)(const AdamStep& step, const AdamBuffers& buffers, int64_t n);
  /// To float32, past the caches. @param y aligned to 64 bytes, n a multiple of 16
  void (*widen)(int64_t n, const Half* x, float* y);
};

/// From which shapes on these loops are faster than LibTorch's convolutions: measured for each instruction set.
struct FastShapes {
  int64_t fewest_tiles;       ///< of a convolution by tiles
  int64_t channels_per_tile;  ///< the most, of both sides together
};

struct Table {
  FastShapes fast_shapes;
  RowsNorm<float> rows_norm_float;
  RowsNorm<Half> rows_norm_half;
  Unfold<float> unfold_float;
  Unfold<Half> unfold_half;
  WideConvolution wide_convolution;
  WinogradMaps<float> winograd3_maps_float;  ///< of filters with 3x3 taps
  WinogradMaps<Half> winograd3_maps_half;
  Winograd winograd3;
  WinogradMaps<float> winograd2_maps_float;  ///< with 2x2 taps
  WinogradMaps<Half> winograd2_maps_half;
  Winograd winograd2;
  FlatUpdate flat_update;
};

const Table& baseline();
const Table& avx2();
const Table& avx512();
/// Those for the most that this processor has, and that ATEN_CPU_CAPABILITY allows ("default", "avx2").
const Table& best();

}  // namespace dalle2::loops
