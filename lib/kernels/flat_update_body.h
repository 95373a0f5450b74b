// SPDX-License-Identifier: MIT
// Included by loops_body.h: passes over the weights, gradients, moments and average of a network.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dalle2::loops {
namespace {

/// Denormal numbers, which make an update several times as slow, begin at 1e-38: moments of a weight without gradients get there. A
/// first moment below this becomes 0, and a second moment above 0 is at least that. Neither changes a weight: with eps 0, a ratio stays
/// finite.
constexpr float kLeastFirst = 1e-30f, kLeastSecond = 1e-36f;

template <bool kAverage, bool kHalves>
void adam_with(const AdamStep& step, const AdamBuffers& buffers, int64_t n) {
  float* __restrict const weights = buffers.weights;
  const float* __restrict const grads = buffers.grads;
  float* __restrict const exp_avg = buffers.exp_avg;
  float* __restrict const exp_avg_sq = buffers.exp_avg_sq;
  float* __restrict const average = buffers.average;
  Half* __restrict const halves = buffers.halves;
  const AdamStep s = step;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float grad = grads[i] * s.grad_factor;
    const float any_first = exp_avg[i] + s.taken1 * (grad - exp_avg[i]);
    const float first = std::fabs(any_first) < kLeastFirst ? 0.0f : any_first;  // NaN stays
    const float any_second = exp_avg_sq[i] * s.beta2 + s.taken2 * grad * grad;
    const bool is_small = any_second > 0.0f && any_second < kLeastSecond;
    const float second = is_small ? kLeastSecond : any_second;
    const float root = std::sqrt(second) * s.root_factor + s.eps;
    const float weight = weights[i] * s.kept - s.step_size * first / root;
    exp_avg[i] = first;
    exp_avg_sq[i] = second;
    weights[i] = weight;
    if constexpr (kAverage) average[i] += s.average_weight * (weight - average[i]);
    if constexpr (kHalves) store(halves[i], weight);
  }
}

void adam(const AdamStep& step, const AdamBuffers& buffers, int64_t n) {
  if (buffers.average != nullptr && buffers.halves != nullptr) {
    adam_with<true, true>(step, buffers, n);
  } else if (buffers.average != nullptr) {
    adam_with<true, false>(step, buffers, n);
  } else if (buffers.halves != nullptr) {
    adam_with<false, true>(step, buffers, n);
  } else {
    adam_with<false, false>(step, buffers, n);
  }
}

void widen(int64_t n, const Half* x, float* y) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < n; i += 16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    _mm512_stream_ps(y + i,
                     _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
                         0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, bits), 16)));
  }
  _mm_sfence();
#elif defined(__AVX2__)
  for (int64_t i = 0; i < n; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_stream_ps(y + i,
                     _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  _mm_sfence();
#else
  for (int64_t i = 0; i < n; ++i) y[i] = load(x[i]);
#endif
}

}  // namespace
}  // namespace dalle2::loops
