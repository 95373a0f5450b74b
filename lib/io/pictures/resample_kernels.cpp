// SPDX-License-Identifier: MIT
// Each kernel for any machine and for AVX2, chosen when the program runs. Both add whole numbers modulo
// 2^32, so that the order of the terms does not show.
#include "io/pictures/resample.h"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dalle2 {
namespace {

constexpr int kHalf = 1 << (kFractionBits - 1);
constexpr int kLowBits = 15;

uint8_t clipped(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

void horizontal_pass_plain(const uint8_t* in,
                           size_t in_stride,
                           int rows,
                           uint8_t* out,
                           size_t out_stride,
                           const SplitTaps& split) {
  const Taps& taps = split.taps;
  for (int y = 0; y < rows; ++y, in += in_stride, out += out_stride) {
    for (size_t x = 0; x < taps.size(); ++x) {
      const int32_t* weights = taps.of(x);
      const uint8_t* pixel = in + 3 * static_cast<size_t>(taps.first[x]);
      int32_t sums[3] = {kHalf, kHalf, kHalf};  // red, green, blue
      for (int k = 0; k < taps.count[x]; ++k, pixel += 3) {
        for (int c = 0; c < 3; ++c) sums[c] += weights[k] * pixel[c];
      }
      for (int c = 0; c < 3; ++c) out[3 * x + static_cast<size_t>(c)] = clipped(sums[c]);
    }
  }
}

void vertical_row_plain(const uint8_t* in,
                        size_t stride,
                        const SplitTaps& split,
                        size_t y,
                        uint8_t* out,
                        size_t bytes) {
  const Taps& taps = split.taps;
  in += static_cast<size_t>(taps.first[y]) * stride;
  const int32_t* weights = taps.of(y);
  constexpr size_t kBlock = 64;  // for the compiler's vectors
  for (size_t i = 0; i < bytes; i += kBlock) {
    const size_t block = std::min(kBlock, bytes - i);
    int32_t sums[kBlock];
    std::fill_n(sums, block, kHalf);
    for (int k = 0; k < taps.count[y]; ++k) {
      const uint8_t* const row = in + i + static_cast<size_t>(k) * stride;
      for (size_t b = 0; b < block; ++b) sums[b] += weights[k] * row[b];
    }
    for (size_t b = 0; b < block; ++b) out[i + b] = clipped(sums[b]);
  }
}

#if defined(__x86_64__)

/// 16 bytes of each of two rows.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load_two(const uint8_t* upper,
                                                                    const uint8_t* lower) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/// Sums of value * weight, eight of 32 bits.
struct Sums {
  __m256i low, high;
};

[[gnu::target("avx2"), gnu::always_inline]] inline void add_pair(Sums& sums,
                                                                 __m256i values,
                                                                 __m256i low,
                                                                 __m256i high) {
  sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(values, low));
  sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(values, high));
}

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i total(const Sums& sums) {
  const __m256i sum = _mm256_add_epi32(sums.low, _mm256_slli_epi32(sums.high, kLowBits));
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), kFractionBits);
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store_pixel(int rgb, uint8_t* to) {
  std::memcpy(to, &rgb, 4);
}

/// Four rows at once, four taps at a time: 16 bytes hold the colours of five neighbours, of which
/// two shuffles make the pairs R0 R1 G0 G1 B0 B1 and R2 R3 G2 G3 B2 B3 of 16 bits.
[[gnu::target("avx2")]] void horizontal_four_rows_avx2(const uint8_t* const in[4],
                                                       uint8_t* const out[4],
                                                       const SplitTaps& split) {
  const Taps& taps = split.taps;
  const size_t pairs = static_cast<size_t>(taps.most) / 2;
  const __m256i front = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i back = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  for (size_t x = 0; x < taps.size(); ++x) {
    const int32_t* low = split.low.data() + x * pairs;
    const int32_t* high = split.high.data() + x * pairs;
    size_t at = 3 * static_cast<size_t>(taps.first[x]);
    Sums upper{_mm256_setzero_si256(), _mm256_setzero_si256()}, lower = upper;
    for (int k = 0; k < taps.count[x]; k += 4, at += 12, low += 2, high += 2) {
      const __m256i low0 = _mm256_set1_epi32(low[0]), low1 = _mm256_set1_epi32(low[1]);
      const __m256i high0 = _mm256_set1_epi32(high[0]), high1 = _mm256_set1_epi32(high[1]);
      const __m256i first = load_two(in[0] + at, in[1] + at);
      add_pair(upper, _mm256_shuffle_epi8(first, front), low0, high0);
      add_pair(upper, _mm256_shuffle_epi8(first, back), low1, high1);
      const __m256i second = load_two(in[2] + at, in[3] + at);
      add_pair(lower, _mm256_shuffle_epi8(second, front), low0, high0);
      add_pair(lower, _mm256_shuffle_epi8(second, back), low1, high1);
    }
    const __m256i words = _mm256_packs_epi32(total(upper), total(lower));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    store_pixel(_mm256_extract_epi32(bytes, 0), out[0] + 3 * x);
    store_pixel(_mm256_extract_epi32(bytes, 4), out[1] + 3 * x);
    store_pixel(_mm256_extract_epi32(bytes, 1), out[2] + 3 * x);
    store_pixel(_mm256_extract_epi32(bytes, 5), out[3] + 3 * x);
  }
}

void horizontal_pass_avx2(const uint8_t* in,
                          size_t in_stride,
                          int rows,
                          uint8_t* out,
                          size_t out_stride,
                          const SplitTaps& taps) {
  for (int y = 0; y < rows; y += 4) {
    const uint8_t* from[4];
    uint8_t* to[4];
    for (int i = 0; i < 4; ++i) {  // beyond the end, the last row again
      const size_t row = static_cast<size_t>(std::min(y + i, rows - 1));
      from[i] = in + row * in_stride;
      to[i] = out + row * out_stride;
    }
    horizontal_four_rows_avx2(from, to, taps);
  }
}

/// 32 values from two rows at a time, as pairs of 16 bits.
[[gnu::target("avx2"), gnu::always_inline]] inline void vertical_block_avx2(const uint8_t* in,
                                                                            size_t stride,
                                                                            const int32_t* low,
                                                                            const int32_t* high,
                                                                            int count,
                                                                            uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  Sums sums[4] = {{zero, zero}, {zero, zero}, {zero, zero}, {zero, zero}};
  for (int k = 0; k < count; k += 2, in += 2 * stride, ++low, ++high) {
    // The weight of a row after the last is 0: any other one will do.
    const uint8_t* next = k + 1 < count ? in + stride : in;
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next));
    const __m256i front = _mm256_unpacklo_epi8(upper, lower);
    const __m256i back = _mm256_unpackhi_epi8(upper, lower);
    const __m256i low_pair = _mm256_set1_epi32(*low), high_pair = _mm256_set1_epi32(*high);
    add_pair(sums[0], _mm256_unpacklo_epi8(front, zero), low_pair, high_pair);
    add_pair(sums[1], _mm256_unpackhi_epi8(front, zero), low_pair, high_pair);
    add_pair(sums[2], _mm256_unpacklo_epi8(back, zero), low_pair, high_pair);
    add_pair(sums[3], _mm256_unpackhi_epi8(back, zero), low_pair, high_pair);
  }
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(total(sums[0]), total(sums[1])),
                                            _mm256_packs_epi32(total(sums[2]), total(sums[3])));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

[[gnu::target("avx2")]] void vertical_row_avx2(const uint8_t* in,
                                               size_t stride,
                                               const SplitTaps& split,
                                               size_t y,
                                               uint8_t* out,
                                               size_t bytes) {
  constexpr size_t kAtOnce = 32;
  if (bytes < kAtOnce) return vertical_row_plain(in, stride, split, y, out, bytes);
  const Taps& taps = split.taps;
  in += static_cast<size_t>(taps.first[y]) * stride;
  const int count = taps.count[y];
  const size_t pairs = static_cast<size_t>(taps.most) / 2;
  const int32_t* low = split.low.data() + y * pairs;
  const int32_t* high = split.high.data() + y * pairs;
  for (size_t i = 0; i < bytes; i += kAtOnce) {
    const size_t at = std::min(i, bytes - kAtOnce);  // the last block overlaps the one before
    vertical_block_avx2(in + at, stride, low, high, count, out + at);
  }
}

#endif

}  // namespace

SplitTaps::SplitTaps(Taps given) : taps(std::move(given)) {
  low.resize(taps.weights.size() / 2);
  high.resize(low.size());
  constexpr uint32_t kLowMask = (1U << kLowBits) - 1;
  for (size_t pair = 0; pair < low.size(); ++pair) {
    const int32_t first = taps.weights[2 * pair], second = taps.weights[2 * pair + 1];
    const auto join = [](uint32_t a, uint32_t b) {
      return static_cast<int32_t>((a & 0xffffU) | (b << 16));
    };
    low[pair] =
        join(static_cast<uint32_t>(first) & kLowMask, static_cast<uint32_t>(second) & kLowMask);
    high[pair] =
        join(static_cast<uint32_t>(first >> kLowBits), static_cast<uint32_t>(second >> kLowBits));
  }
}

std::vector<ResampleKernels> all_kernels() {
  std::vector<ResampleKernels> all = {{horizontal_pass_plain, vertical_row_plain}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) all.push_back({horizontal_pass_avx2, vertical_row_avx2});
#endif
  return all;
}

const ResampleKernels& best_kernels() {
  static const ResampleKernels kernels = all_kernels().back();
  return kernels;
}

}  // namespace dalle2
