// SPDX-License-Identifier: MIT
#include "kernels/winograd.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>

#include "kernels/loops.h"

namespace dalle2 {
namespace {

template <class T>
const T* values_of(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

/// Calls `work(loops of maps like this, an element)`.
template <class Work>
void with_maps_like(const at::Tensor& map, const Work& work) {
  const loops::Table& table = loops::best();
  if (map.scalar_type() == at::kFloat) {
    work(table.winograd_maps_float, float{});
  } else {
    work(table.winograd_maps_half, loops::Half{});
  }
}

/// 3x3 convolutions of channels-last maps, in tiles of 4x4 pixels. There are two loop orders. Each keeps its inner
/// block in the second-level cache: a block of tiles with all weights, or a block of channels with all tiles.
class Tiles {
 public:
  /// @param weight [out, in, 3, 3], channels last
  Tiles(const at::Tensor& map, const at::Tensor& weight)
      : batch_(map.size(0)),
        height_(map.size(2)),
        width_(map.size(3)),
        tiles_(winograd_tiles(map)),
        in_(weight.size(1)),
        out_(weight.size(0)),
        weight_(weight) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) const {
    const float* const w = weight_.const_data_ptr<float>();
    return multiplied(x, out_, bias, [&](const WeightPart& part, float* u) {
      loop_.tiles_of_weights(part.begin, part.end, part.count, in_, w + part.first * 9 * in_, u);
    });
  }

  at::Tensor pixel_gradient(const at::Tensor& dy) const {
    const float* const w = weight_.const_data_ptr<float>();
    return multiplied(dy, in_, {}, [&](const WeightPart& part, float* u) {
      loop_.tiles_of_flipped_weights(
          part.begin, part.end, out_, in_, part.count, w + part.first, u);
    });
  }

  at::Tensor weight_gradient(const at::Tensor& x, const at::Tensor& dy) const {
    at::Tensor weight = at::empty_like(weight_);
    float* const to = weight.mutable_data_ptr<float>();
    const bool all_tiles = takes_all_tiles(in_ + out_, out_);
    const int64_t block = all_tiles ? tiles_ : tiles_of_block(in_ + out_);
    const at::Tensor v = room(block, in_), z = room(block, out_);
    const at::Tensor u = all_tiles ? at::Tensor() : at::zeros({36 * out_ * in_}, at::kFloat);
    float* const to_v = v.mutable_data_ptr<float>();
    float* const to_z = z.mutable_data_ptr<float>();
    const int64_t v_step = v.size(1), z_step = z.size(1);
    for (int64_t first = 0; first < tiles_; first += block) {
      const int64_t count = std::min(block, tiles_ - first);
      with_maps_like(x, [&](const auto& maps, auto element) {
        const auto* const from = values_of<decltype(element)>(x);
        const auto* const from_dy = values_of<decltype(element)>(dy);
        each_tile(first, count, in_ + out_, [&](int64_t begin, int64_t end) {
          maps.tiles_of_pixels(map_of(in_), begin, end, v_step, from, to_v + (begin - first) * in_);
          maps.tiles_of_gradients(
              map_of(out_), begin, end, z_step, from_dy, to_z + (begin - first) * out_);
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
                       u.mutable_data_ptr<float>() + place * out_ * in_);
      });
    }
    if (!all_tiles) {
      at::parallel_for(0, out_, grain(kTransform * in_), [&](int64_t begin, int64_t end) {
        loop_.weights_of_tiles(begin, end, out_, in_, u.const_data_ptr<float>(), to);
      });
      return weight;
    }
    each_block(
        out_, channels_of_block(in_, out_), 36 * tiles_ * in_, [&](int64_t first, int64_t count) {
          const at::Tensor own = at::zeros({36 * count * in_}, at::kFloat);
          float* const sums = own.mutable_data_ptr<float>();
          for (int64_t place = 0; place < 36; ++place) {
            loop_.gradient(tiles_,
                           count,
                           out_,
                           in_,
                           to_z + place * z_step + first,
                           to_v + place * v_step,
                           sums + place * count * in_);
          }
          loop_.weights_of_tiles(0, count, count, in_, sums, to + first * 9 * in_);
        });
    return weight;
  }

 private:
  /// `count` of the channels that are made, from `first` on; rows `begin` to `end` of those that are read.
  struct WeightPart {
    int64_t first, count, begin, end;
  };

  /// A map of `out` channels. `weights(part, u)` makes rows of u [36, channels of x, part.count].
  template <class Weights>
  at::Tensor multiplied(const at::Tensor& x,
                        int64_t out,
                        const at::Tensor& bias,
                        const Weights& weights) const {
    at::Tensor y =
        at::empty({batch_, out, height_, width_}, x.options(), at::MemoryFormat::ChannelsLast);
    const float* const add = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    with_maps_like(x, [&](const auto& maps, auto element) {
      using T = decltype(element);
      T* const to = static_cast<T*>(y.mutable_data_ptr());
      if (takes_all_tiles(x.size(1), out)) {
        multiply_all_tiles(maps, values_of<T>(x), x.size(1), out, add, weights, to);
      } else {
        multiply_blocks_of_tiles(maps, values_of<T>(x), x.size(1), out, add, weights, to);
      }
    });
    return y;
  }

  /// m = v u at each of the 36 places. @param v, m of room() @param u [36, in, out]
  void multiply_places(int64_t tiles,
                       int64_t in,
                       int64_t out,
                       const at::Tensor& v,
                       const at::Tensor& u,
                       const at::Tensor& m) const {
    const float* const from = v.const_data_ptr<float>();
    const float* const with = u.const_data_ptr<float>();
    float* const to = m.mutable_data_ptr<float>();
    for (int64_t place = 0; place < 36; ++place) {
      loop_.product(tiles,
                    in,
                    out,
                    from + place * v.size(1),
                    with + place * in * out,
                    to + place * m.size(1));
    }
  }

  /// Each thread has channels of its own, and computes them for all tiles.
  template <class T, class Weights>
  void multiply_all_tiles(const loops::WinogradMaps<T>& maps,
                          const T* from,
                          int64_t in,
                          int64_t out,
                          const float* bias,
                          const Weights& weights,
                          T* to) const {
    const at::Tensor v = room(tiles_, in);
    float* const to_v = v.mutable_data_ptr<float>();
    const int64_t v_step = v.size(1);
    each_tile(0, tiles_, in, [&](int64_t begin, int64_t end) {
      maps.tiles_of_pixels(map_of(in), begin, end, v_step, from, to_v + begin * in);
    });
    each_block(
        out, channels_of_block(in, out), 36 * tiles_ * in, [&](int64_t first, int64_t count) {
          const at::Tensor u = at::empty({36 * in * count}, at::kFloat), m = room(tiles_, count);
          float* const to_u = u.mutable_data_ptr<float>();
          float* const to_m = m.mutable_data_ptr<float>();
          weights({first, count, 0, in}, to_u);
          multiply_places(tiles_, in, count, v, u, m);
          maps.pixels_of_tiles(map_of(out),
                               0,
                               tiles_,
                               m.size(1),
                               count,
                               to_m,
                               bias == nullptr ? nullptr : bias + first,
                               to + first);
        });
  }

  /// Each thread has tiles of its own, which stay in its cache from the first pixel to the last.
  template <class T, class Weights>
  void multiply_blocks_of_tiles(const loops::WinogradMaps<T>& maps,
                                const T* from,
                                int64_t in,
                                int64_t out,
                                const float* bias,
                                const Weights& weights,
                                T* to) const {
    const at::Tensor u = at::empty({36 * in * out}, at::kFloat);
    float* const to_u = u.mutable_data_ptr<float>();
    const int64_t units = in / loops::kTileChannels;
    at::parallel_for(
        0, units, grain(kTransform * loops::kTileChannels * out), [&](int64_t begin, int64_t end) {
          weights({0, out, begin * loops::kTileChannels, end * loops::kTileChannels}, to_u);
        });
    const int64_t tiles = tiles_of_block(in + out, at::get_num_threads());
    const int64_t blocks = (tiles_ + tiles - 1) / tiles;
    at::parallel_for(0, blocks, grain(36 * tiles * in * out), [&](int64_t begin, int64_t end) {
      const at::Tensor v = room(tiles, in), m = room(tiles, out);
      float* const to_v = v.mutable_data_ptr<float>();
      float* const to_m = m.mutable_data_ptr<float>();
      for (int64_t first = begin * tiles; first < std::min(end * tiles, tiles_); first += tiles) {
        const int64_t last = std::min(first + tiles, tiles_);
        maps.tiles_of_pixels(map_of(in), first, last, v.size(1), from, to_v);
        multiply_places(last - first, in, out, v, u, m);
        maps.pixels_of_tiles(map_of(out), first, last, m.size(1), out, to_m, bias, to);
      }
    });
  }

  loops::TileMap map_of(int64_t channels) const { return {height_, width_, channels}; }

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
    constexpr int64_t kNumbers = (1 << 20) / (36 * sizeof(float)), kFewest = 64,
                      kFewestOfThread = 12;
    const int64_t largest = std::max(kFewest, kNumbers / channels);
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

  /// [36, numbers of a place]: a little more than needed, so that places do not share lines of the cache
  static at::Tensor room(int64_t tiles, int64_t channels) {
    return at::empty({36, tiles * channels + loops::kTileChannels}, at::kFloat);
  }

  /// As many products take as long as the 36 numbers of a pixel or weight.
  static constexpr int64_t kTransform = 16 * 36;

  /// How many items of so much work a thread takes at least: waking one costs as much as some ten microseconds of work.
  static int64_t grain(int64_t products_of_item) {
    constexpr int64_t kLeastProducts = 1 << 20;
    return std::max<int64_t>(1, kLeastProducts / products_of_item);
  }

  /// @param channels that are transformed
  template <class Work>
  static void each_tile(int64_t first, int64_t count, int64_t channels, const Work& work) {
    at::parallel_for(first, first + count, grain(kTransform * channels), work);
  }
  template <class Work>
  static void each_place(int64_t products, const Work& work) {
    at::parallel_for(0, 36, grain(products), [&](int64_t begin, int64_t end) {
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

  const loops::Winograd& loop_ = loops::best().winograd;
  int64_t batch_, height_, width_, tiles_, in_, out_;
  at::Tensor weight_;
};

}  // namespace

int64_t winograd_tiles(const at::Tensor& map) {
  return map.size(0) * ((map.size(2) + 3) / 4) * ((map.size(3) + 3) / 4);
}

at::Tensor winograd_convolution(const at::Tensor& x,
                                const at::Tensor& weight,
                                const at::Tensor& bias) {
  return Tiles(x, weight).forward(x, bias);
}

at::Tensor winograd_pixel_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  return Tiles(dy, weight).pixel_gradient(dy);
}

at::Tensor winograd_weight_gradient(const at::Tensor& x,
                                    const at::Tensor& dy,
                                    const at::Tensor& weight) {
  return Tiles(x, weight).weight_gradient(x, dy);
}

}  // namespace dalle2
