// SPDX-License-Identifier: MIT
#include "kernels/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu_algorithms.h"
#include "kernels/loops.h"

namespace dalle2 {
namespace {

template <class T>
const T* values_of(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

/// Calls `work(loops of maps like this, an element)`.
template <class Work>
void with_maps_like(const at::Tensor& map, int64_t taps, const Work& work) {
  const loops::Table& table = loops::best();
  if (map.scalar_type() == at::kFloat) {
    work(taps == 3 ? table.winograd3_maps_float : table.winograd2_maps_float, float{});
  } else {
    work(taps == 3 ? table.winograd3_maps_half : table.winograd2_maps_half, loops::Half{});
  }
}

/// A map and which of its pixels are in the tiles.
loops::TileMap tile_map(const at::Tensor& map,
                        int64_t step = 1,
                        int64_t top = 0,
                        int64_t left = 0) {
  return {map.size(2), map.size(3), map.size(1), step, top, left};
}

/// Maps that are read into tiles, their channels side by side, and the taps of the filters of each.
struct Sources {
  std::vector<loops::TileMap> maps;
  std::vector<loops::FilterTaps> taps;

  int64_t channels() const { return maps.front().channels * static_cast<int64_t>(maps.size()); }
};

/// `count` of the channels that are made, from `first` on; rows `begin` to `end` of those that are read.
struct WeightPart {
  int64_t first, count, begin, end;
};

/// Sums of products over tiles of 4x4 pixels. There are two loop orders. Each keeps its inner block in the second-level
/// cache: a block of tiles with all weights, or a block of channels with all tiles.
class Tiles {
 public:
  /// @param taps of the filters in a line, 2 or 3 @param in, out channels of a tile
  Tiles(int64_t taps, int64_t tiles, int64_t in, int64_t out)
      : loop_(taps == 3 ? loops::best().winograd3 : loops::best().winograd2),
        taps_(taps),
        places_(loop_.places),
        tiles_(tiles),
        in_(in),
        out_(out) {}

  /// The sums over the sources of filters that make a channel each: those of a convolution.
  void convolve(const at::Tensor& x,
                const Sources& from,
                const at::Tensor& weight,
                const loops::TileMap& to,
                const at::Tensor& bias,
                at::Tensor& y) const {
    const float* const w = weight.const_data_ptr<float>();
    const int64_t channels = from.maps.front().channels;
    multiply(x, from, out_, to, bias, y, [&](const WeightPart& part, const at::Tensor& u) {
      for (size_t i = 0; i < from.taps.size(); ++i) {
        const int64_t before = static_cast<int64_t>(i) * channels;
        const int64_t begin = std::max<int64_t>(part.begin - before, 0);
        const int64_t end = std::min(part.end - before, channels);
        if (begin >= end) continue;
        loop_.tiles_of_weights(from.taps[i],
                               begin,
                               end,
                               part.count,
                               u.size(1),
                               w + part.first * from.taps[i].filter,
                               u.mutable_data_ptr<float>() + before * part.count);
      }
    });
  }

  /// The sums over the filters: those of the gradient of a convolution at its pixels. @param from one map
  void spread(const at::Tensor& dy,
              const Sources& from,
              const at::Tensor& weight,
              const loops::TileMap& to,
              const at::Tensor& bias,
              at::Tensor& dx) const {
    const float* const w = weight.const_data_ptr<float>();
    multiply(dy, from, in_, to, bias, dx, [&](const WeightPart& part, const at::Tensor& u) {
      loop_.tiles_of_filters(from.taps.front(),
                             part.begin,
                             part.end,
                             u.size(1),
                             part.count,
                             w + part.first,
                             u.mutable_data_ptr<float>());
    });
  }

  /// The gradient of convolve() at the weight.
  void weight_gradient(const at::Tensor& x,
                       const Sources& from,
                       const at::Tensor& dy,
                       at::Tensor& weight) const {
    const loops::TileMap map_of_dy = tile_map(dy);
    float* const to = weight.mutable_data_ptr<float>();
    const bool all_tiles = takes_all_tiles(in_ + out_, out_);
    const int64_t block = all_tiles ? tiles_ : tiles_of_block(in_ + out_);
    const at::Tensor v = room(block, in_), z = room(block, out_);
    const at::Tensor u = all_tiles ? at::Tensor() : room(out_, in_).zero_();
    float* const to_v = v.mutable_data_ptr<float>();
    float* const to_z = z.mutable_data_ptr<float>();
    const int64_t v_step = v.size(1), z_step = z.size(1);
    for (int64_t first = 0; first < tiles_; first += block) {
      const int64_t count = std::min(block, tiles_ - first);
      with_maps_like(x, taps_, [&](const auto& maps, auto element) {
        const auto* const pixels = values_of<decltype(element)>(x);
        const auto* const gradients = values_of<decltype(element)>(dy);
        each_tile(first, count, in_ + out_, [&](int64_t begin, int64_t end) {
          read(maps, from, begin, end, v_step, pixels, to_v + (begin - first) * in_);
          maps.tiles_of_gradients(
              map_of_dy, begin, end, z_step, gradients, to_z + (begin - first) * out_);
        });
      });
      if (all_tiles) break;
      each_place(count * in_ * out_, [&](int64_t place) {
        loop_.gradient(count,
                       out_,
                       out_,
                       in_,
                       to_z + place * z_step,
                       to_v + place * v_step,
                       u.mutable_data_ptr<float>() + place * u.size(1));
      });
    }
    if (!all_tiles) {
      at::parallel_for(0, out_, grain(transform() * in_), [&](int64_t begin, int64_t end) {
        weights_of(from, begin, end, u, to);
      });
      return;
    }
    each_block(out_,
               channels_of_block(in_, out_),
               places_ * tiles_ * in_,
               [&](int64_t first, int64_t count) {
                 const at::Tensor own = room(count, in_).zero_();
                 float* const sums = own.mutable_data_ptr<float>();
                 for (int64_t place = 0; place < places_; ++place) {
                   loop_.gradient(tiles_,
                                  count,
                                  out_,
                                  in_,
                                  to_z + place * z_step + first,
                                  to_v + place * v_step,
                                  sums + place * own.size(1));
                 }
                 weights_of(from, 0, count, own, to + first * from.taps.front().filter);
               });
  }

 private:
  /// The tiles of all sources, side by side.
  template <class T>
  static void read(const loops::WinogradMaps<T>& maps,
                   const Sources& from,
                   int64_t first,
                   int64_t last,
                   int64_t step,
                   const T* x,
                   float* v) {
    for (size_t i = 0; i < from.maps.size(); ++i) {
      const loops::TileMap& map = from.maps[i];
      maps.tiles_of_pixels(
          map, first, last, step, from.channels(), x, v + static_cast<int64_t>(i) * map.channels);
    }
  }

  /// Filters `first` to `last` of the weight's gradient. @param u [places, out, in]
  void weights_of(
      const Sources& from, int64_t first, int64_t last, const at::Tensor& u, float* w) const {
    const int64_t channels = from.maps.front().channels;
    for (size_t i = 0; i < from.taps.size(); ++i) {
      const float* const of_source = u.const_data_ptr<float>() + static_cast<int64_t>(i) * channels;
      loop_.weights_of_tiles(from.taps[i], first, last, u.size(1), channels, in_, of_source, w);
    }
  }

  /// `made` channels of y. `weights(part, u)` makes rows of u [places, channels of the sources, part.count].
  template <class Weights>
  void multiply(const at::Tensor& x,
                const Sources& from,
                int64_t made,
                const loops::TileMap& to,
                const at::Tensor& bias,
                at::Tensor& y,
                const Weights& weights) const {
    const float* const add = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    with_maps_like(x, taps_, [&](const auto& maps, auto element) {
      using T = decltype(element);
      T* const values = static_cast<T*>(y.mutable_data_ptr());
      if (takes_all_tiles(from.channels(), made)) {
        multiply_all_tiles(maps, values_of<T>(x), from, made, to, add, weights, values);
      } else {
        multiply_blocks_of_tiles(maps, values_of<T>(x), from, made, to, add, weights, values);
      }
    });
  }

  /// m = v u at each of the places. @param v, m of room() @param u [places, in, out]
  void multiply_places(int64_t tiles,
                       int64_t in,
                       int64_t out,
                       const at::Tensor& v,
                       const at::Tensor& u,
                       const at::Tensor& m) const {
    const float* const from = v.const_data_ptr<float>();
    const float* const with = u.const_data_ptr<float>();
    float* const to = m.mutable_data_ptr<float>();
    for (int64_t place = 0; place < places_; ++place) {
      loop_.product(tiles,
                    in,
                    out,
                    from + place * v.size(1),
                    with + place * u.size(1),
                    to + place * m.size(1));
    }
  }

  /// Each thread has channels of its own, and computes them for all tiles.
  template <class T, class Weights>
  void multiply_all_tiles(const loops::WinogradMaps<T>& maps,
                          const T* x,
                          const Sources& from,
                          int64_t out,
                          const loops::TileMap& to,
                          const float* bias,
                          const Weights& weights,
                          T* y) const {
    const int64_t in = from.channels();
    const at::Tensor v = room(tiles_, in);
    float* const to_v = v.mutable_data_ptr<float>();
    const int64_t v_step = v.size(1);
    each_tile(0, tiles_, in, [&](int64_t begin, int64_t end) {
      read(maps, from, begin, end, v_step, x, to_v + begin * in);
    });
    each_block(
        out, channels_of_block(in, out), places_ * tiles_ * in, [&](int64_t first, int64_t count) {
          const at::Tensor u = room(in, count), m = room(tiles_, count);
          float* const to_m = m.mutable_data_ptr<float>();
          weights(WeightPart{first, count, 0, in}, u);
          multiply_places(tiles_, in, count, v, u, m);
          maps.pixels_of_tiles(to,
                               0,
                               tiles_,
                               m.size(1),
                               count,
                               to_m,
                               bias == nullptr ? nullptr : bias + first,
                               y + first);
        });
  }

  /// Each thread has tiles of its own, which stay in its cache from the first pixel to the last.
  template <class T, class Weights>
  void multiply_blocks_of_tiles(const loops::WinogradMaps<T>& maps,
                                const T* x,
                                const Sources& from,
                                int64_t out,
                                const loops::TileMap& to,
                                const float* bias,
                                const Weights& weights,
                                T* y) const {
    const int64_t in = from.channels();
    const at::Tensor u = room(in, out);
    const int64_t units = in / loops::kTileChannels;
    at::parallel_for(
        0, units, grain(transform() * loops::kTileChannels * out), [&](int64_t begin, int64_t end) {
          weights(WeightPart{0, out, begin * loops::kTileChannels, end * loops::kTileChannels}, u);
        });
    const int64_t tiles = tiles_of_block(in + out, at::get_num_threads());
    const int64_t blocks = (tiles_ + tiles - 1) / tiles;
    at::parallel_for(0, blocks, grain(places_ * tiles * in * out), [&](int64_t begin, int64_t end) {
      const at::Tensor v = room(tiles, in), m = room(tiles, out);
      float* const to_v = v.mutable_data_ptr<float>();
      float* const to_m = m.mutable_data_ptr<float>();
      for (int64_t first = begin * tiles; first < std::min(end * tiles, tiles_); first += tiles) {
        const int64_t last = std::min(first + tiles, tiles_);
        read(maps, from, first, last, v.size(1), x, to_v);
        multiply_places(last - first, in, out, v, u, m);
        maps.pixels_of_tiles(to, first, last, m.size(1), out, to_m, bias, y);
      }
    });
  }

  /// If their numbers are few, those of the weights many, and there are channels for all threads.
  /// @param channels of the tiles @param made channels that threads divide
  bool takes_all_tiles(int64_t channels, int64_t made) const {
    constexpr int64_t kMostNumbers = 140000, kFewestWeights = 8000;
    return tiles_ * channels <= kMostNumbers && in_ * out_ >= kFewestWeights &&
           made >= loops::kTileChannels * at::get_num_threads();
  }

  /// In blocks of nearly equal size, as many for each thread. No bit depends on their size. @param channels of both
  /// sides @param threads that each take blocks
  int64_t tiles_of_block(int64_t channels, int64_t threads = 1) const {
    constexpr int64_t kBytes = 1 << 20, kFewest = 64, kFewestOfThread = 12;
    const int64_t numbers = kBytes / (places_ * static_cast<int64_t>(sizeof(float)));
    const int64_t largest = std::max(kFewest, numbers / channels);
    const int64_t rounds = (tiles_ + largest * threads - 1) / (largest * threads);
    const int64_t blocks = rounds * threads;
    return std::min(std::max((tiles_ + blocks - 1) / blocks, kFewestOfThread), tiles_);
  }

  /// As few as leave each thread some. No bit depends on their number. @param others of the other side @param all of
  /// them
  int64_t channels_of_block(int64_t others, int64_t all) const {
    constexpr int64_t kNumbers = 8400, kNumbersOfTiles = 1 << 16, kUnit = loops::kTileChannels;
    const int64_t of_thread = all / std::max<int64_t>(1, at::get_num_threads());
    const int64_t most = std::min({kNumbers / others, kNumbersOfTiles / tiles_, of_thread});
    return std::clamp(most / kUnit * kUnit, kUnit, 4 * kUnit);
  }

  /// [places, numbers of a place]: a little more than needed, so that places do not share lines of the cache
  at::Tensor room(int64_t rows, int64_t channels) const {
    return at::cpu::empty({places_, rows * channels + loops::kTileChannels}, at::kFloat);
  }

  /// As many products take as long as the numbers of a pixel or weight.
  int64_t transform() const { return 16 * places_; }

  /// How many items of so much work a thread takes at least: waking one costs as much as some ten microseconds of work.
  static int64_t grain(int64_t products_of_item) {
    constexpr int64_t kLeastProducts = 1 << 20;
    return std::max<int64_t>(1, kLeastProducts / products_of_item);
  }

  /// @param channels that are transformed
  template <class Work>
  void each_tile(int64_t first, int64_t count, int64_t channels, const Work& work) const {
    at::parallel_for(first, first + count, grain(transform() * channels), work);
  }
  template <class Work>
  void each_place(int64_t products, const Work& work) const {
    at::parallel_for(0, places_, grain(products), [&](int64_t begin, int64_t end) {
      for (int64_t place = begin; place < end; ++place) work(place);
    });
  }
  /// `work(first, count)` for blocks of channels. @param products of a channel
  template <class Work>
  static void each_block(int64_t channels, int64_t block, int64_t products, const Work& work) {
    const int64_t blocks = (channels + block - 1) / block;
    at::parallel_for(0, blocks, grain(products * block), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * block; first < std::min(end * block, channels); first += block) {
        work(first, std::min(block, channels - first));
      }
    });
  }

  const loops::Winograd& loop_;
  int64_t taps_, places_, tiles_, in_, out_;
};

at::Tensor map_like(const at::Tensor& x, int64_t channels, int64_t height, int64_t width) {
  return at::cpu::empty(
      {x.size(0), channels, height, width}, x.options(), at::MemoryFormat::ChannelsLast);
}

/// The 3x3 taps of filters [out, 3, 3, in], from the first or from the last on.
loops::FilterTaps taps_of(const at::Tensor& weight, bool flipped) {
  const int64_t in = weight.size(1), sign = flipped ? -1 : 1;
  return {9 * in, flipped ? 8 * in : 0, sign * 3 * in, sign * in};
}

Tiles tiles_of(const at::Tensor& map, const at::Tensor& weight) {
  return {3, winograd_tiles(map), weight.size(1), weight.size(0)};
}

// A 4x4 convolution with a stride of 2 is the sum of four with 2x2 taps, of every second pixel of every second row each:
// the phases (p, q) with taps (p + 2 t, q + 2 s). Tile pixel k is row 2 k + p - 1.
constexpr int64_t kPhases = 2, kTaps = 4;

Sources phases_of(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t in = weight.size(1);
  Sources found;
  for (int64_t p = 0; p < kPhases; ++p) {
    for (int64_t q = 0; q < kPhases; ++q) {
      found.maps.push_back(tile_map(x, kPhases, 1 - p, 1 - q));
      found.taps.push_back(
          {kTaps * kTaps * in, (p * kTaps + q) * in, kPhases * kTaps * in, kPhases * in});
    }
  }
  return found;
}

Tiles halving_tiles(const at::Tensor& x, const at::Tensor& weight) {
  return {2, winograd_halving_tiles(x), kPhases * kPhases * weight.size(1), weight.size(0)};
}

}  // namespace

int64_t winograd_tiles(const at::Tensor& map) {
  return map.size(0) * ((map.size(2) + 3) / 4) * ((map.size(3) + 3) / 4);
}

at::Tensor winograd_convolution(const at::Tensor& x,
                                const at::Tensor& weight,
                                const at::Tensor& bias) {
  at::Tensor y = map_like(x, weight.size(0), x.size(2), x.size(3));
  RECORD_USER_SCOPE_WITH_INPUTS("dalle2::winograd_convolution",
                                std::vector<c10::IValue>({x, y, weight}));
  const Sources from{{tile_map(x, 1, 1, 1)}, {taps_of(weight, false)}};
  tiles_of(x, weight).convolve(x, from, weight, tile_map(y), bias, y);
  return y;
}

at::Tensor winograd_pixel_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  at::Tensor dx = map_like(dy, weight.size(1), dy.size(2), dy.size(3));
  RECORD_USER_SCOPE_WITH_INPUTS("dalle2::winograd_pixel_gradient",
                                std::vector<c10::IValue>({dy, dx, weight}));
  const Sources from{{tile_map(dy, 1, 1, 1)}, {taps_of(weight, true)}};
  tiles_of(dy, weight).spread(dy, from, weight, tile_map(dx), {}, dx);
  return dx;
}

at::Tensor winograd_weight_gradient(const at::Tensor& x,
                                    const at::Tensor& dy,
                                    const at::Tensor& weight) {
  at::Tensor found = at::empty_like(weight);
  RECORD_USER_SCOPE_WITH_INPUTS("dalle2::winograd_weight_gradient",
                                std::vector<c10::IValue>({x, dy, found}));
  const Sources from{{tile_map(x, 1, 1, 1)}, {taps_of(weight, false)}};
  tiles_of(x, weight).weight_gradient(x, from, dy, found);
  return found;
}

int64_t winograd_halving_tiles(const at::Tensor& x) {
  return x.size(0) * ((x.size(2) / 2 + 3) / 4) * ((x.size(3) / 2 + 3) / 4);
}

at::Tensor winograd_halving(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor y = map_like(x, weight.size(0), x.size(2) / 2, x.size(3) / 2);
  halving_tiles(x, weight).convolve(x, phases_of(x, weight), weight, tile_map(y), bias, y);
  return y;
}

at::Tensor winograd_doubling(const at::Tensor& y,
                             const at::Tensor& weight,
                             const at::Tensor& bias) {
  const int64_t in = weight.size(1);
  at::Tensor x = map_like(y, in, y.size(2) * 2, y.size(3) * 2);
  const Tiles tiles(2, winograd_tiles(y), in, weight.size(0));
  for (int64_t p = 0; p < kPhases; ++p) {
    for (int64_t q = 0; q < kPhases; ++q) {
      // Row 2 k + 1 - p is made of the rows k - p and k - p + 1 of y.
      const Sources from{{tile_map(y, 1, p, q)},
                         {{kTaps * kTaps * in,
                           ((kPhases + p) * kTaps + kPhases + q) * in,
                           -kPhases * kTaps * in,
                           -kPhases * in}}};
      tiles.spread(y, from, weight, tile_map(x, kPhases, p - 1, q - 1), bias, x);
    }
  }
  return x;
}

at::Tensor winograd_halving_weight_gradient(const at::Tensor& x,
                                            const at::Tensor& dy,
                                            const at::Tensor& weight) {
  at::Tensor found = at::empty_like(weight);
  halving_tiles(x, weight).weight_gradient(x, phases_of(x, weight), dy, found);
  return found;
}

}  // namespace dalle2
