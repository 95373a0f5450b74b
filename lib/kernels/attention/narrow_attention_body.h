// SPDX-License-Identifier: MIT
// Attention with narrow heads: included by loops_body.h after convolution_body.h.
namespace dalle2::loops {
namespace {

constexpr int kHead = kNarrowHead;
constexpr int kHeadVectors = kHead / kLanes;
constexpr int kGroup = kLanes == 16 ? 8 : 4;  // queries whose sums stay in registers
constexpr int kQueryTile = 256, kKeyTile = 256;

/// 2^x for x <= 0, to 2 units in the last place; below 2^-126 it is that.
inline float exp2_of(float x) {
  x = x < -126.0f ? -126.0f : x;
  constexpr float kRounder = 12582912.0f;  // as in exp_of()
  const float shifted = x + kRounder;
  const float r = x - (shifted - kRounder);  // -0.5 to 0.5
  // 2^r, a polynomial with the least relative error there.
  float p = 1.32764720e-3f;
  p = p * r + 9.67554150e-3f;
  p = p * r + 5.55071328e-2f;
  p = p * r + 2.40221197e-1f;
  p = p * r + 6.93146967e-1f;
  p = p * r + 1.0f;
  const uint32_t exponent = bits_as<uint32_t>(shifted)
                            << 23;  // what the rounder adds is shifted out
  return bits_as<float>(bits_as<uint32_t>(p) + exponent);
}

/// Some queries with their softmax so far (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
struct QueryTile {
  float q[kQueryTile][kHead];
  float out[kQueryTile][kHead];
  float most[kQueryTile], sum[kQueryTile];
};

struct KeyTile {
  float keys[kHead][kKeyTile];  // transposed
  float values[kKeyTile][kHead];
  int64_t count, padded;  // keys, and the next multiple of kLanes
};

template <class T>
void read_keys(const NarrowShape& shape, int64_t first, const T* k, const T* v, KeyTile& tile) {
  const int64_t left = shape.keys - first;
  tile.count = left < kKeyTile ? left : kKeyTile;
  tile.padded = (tile.count + kLanes - 1) / kLanes * kLanes;
  for (int64_t j = 0; j < tile.padded; ++j) {
    const T* const from_k = k + (first + j) * shape.kv_step;
    const T* const from_v = v + (first + j) * shape.kv_step;
    for (int c = 0; c < kHead; ++c) {
      tile.keys[c][j] = j < tile.count ? load(from_k[c]) : 0.0f;
      tile.values[j][c] = j < tile.count ? load(from_v[c]) : 0.0f;
    }
  }
}

/// kGroup queries from `first` on meet the keys.
inline void attend_group(const KeyTile& tile, int64_t first, QueryTile& queries) {
  constexpr float kMasked = -1e30f;
  alignas(64) float scores[kGroup][kKeyTile];
  for (int64_t j = 0; j < tile.padded; j += kLanes) {
    Vector sums[kGroup] = {};
    for (int c = 0; c < kHead; ++c) {
      const Vector keys = load_vector(&tile.keys[c][j]);
      for (int i = 0; i < kGroup; ++i) sums[i] += keys * queries.q[first + i][c];
    }
    for (int i = 0; i < kGroup; ++i) std::memcpy(&scores[i][j], &sums[i], sizeof(Vector));
  }
  for (int i = 0; i < kGroup; ++i) {
    float* const row = scores[i];
    for (int64_t j = tile.count; j < tile.padded; ++j) row[j] = kMasked;
    float most = queries.most[first + i], sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < tile.padded; ++j) most = row[j] > most ? row[j] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < tile.padded; ++j) {
      row[j] = exp2_of(row[j] - most);
      sum += row[j];
    }
    const float kept = exp2_of(queries.most[first + i] - most);
    queries.most[first + i] = most;
    queries.sum[first + i] = queries.sum[first + i] * kept + sum;
    for (int c = 0; c < kHead; ++c) queries.out[first + i][c] *= kept;
  }
  Vector out[kGroup][kHeadVectors];
  std::memcpy(out, queries.out[first], sizeof(out));
  for (int64_t j = 0; j < tile.count; ++j) {
    for (int part = 0; part < kHeadVectors; ++part) {
      const Vector values = load_vector(&tile.values[j][part * kLanes]);
      for (int i = 0; i < kGroup; ++i) out[i][part] += values * scores[i][j];
    }
  }
  std::memcpy(queries.out[first], out, sizeof(out));
}

template <class T>
void narrow_attention(const NarrowShape& shape, const T* q, const T* k, const T* v, T* out) {
  constexpr float kLog2OfE = 1.44269504f;
  const float scale = shape.scale * kLog2OfE;  // the exponentials are powers of two
  QueryTile queries;
  KeyTile keys;
  for (int64_t begin = 0; begin < shape.queries; begin += kQueryTile) {
    const int64_t left = shape.queries - begin;
    const int64_t count = left < kQueryTile ? left : kQueryTile;
    const int64_t padded = (count + kGroup - 1) / kGroup * kGroup;
    for (int64_t i = 0; i < padded; ++i) {
      for (int c = 0; c < kHead; ++c) {
        queries.q[i][c] = i < count ? load(q[(begin + i) * kHead + c]) * scale : 0.0f;
        queries.out[i][c] = 0;
      }
      queries.most[i] = -3e38f;
      queries.sum[i] = 0;
    }
    for (int64_t first = 0; first < shape.keys; first += kKeyTile) {
      read_keys(shape, first, k, v, keys);
      for (int64_t i = 0; i < padded; i += kGroup) attend_group(keys, i, queries);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float factor = 1.0f / queries.sum[i];
      for (int c = 0; c < kHead; ++c)
        store(out[(begin + i) * kHead + c], queries.out[i][c] * factor);
    }
  }
}

}  // namespace
}  // namespace dalle2::loops
