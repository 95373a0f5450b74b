// SPDX-License-Identifier: MIT
#include "data/pictures/planes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dalle2 {
namespace {

void store_one(uint8_t byte, float* out) {
  *out = static_cast<float>(byte) / 255.0F;
}
void store_one(uint8_t byte, uint8_t* out) {
  *out = byte;
}

/// Pixels from `begin` on, one by one.
template <class Value>
void write_pixels(const uint8_t* pixels, size_t begin, size_t plane, Value* out) {
  for (size_t i = begin; i < plane; ++i) {
    for (size_t c = 0; c < 3; ++c) store_one(pixels[3 * i + c], out + c * plane + i);
  }
}

#if defined(__x86_64__)

[[gnu::target("avx2"), gnu::always_inline]] inline void store_eight(__m128i bytes, float* out) {
  // The quotient is rounded as the one of two floats is: a product with 1 / 255 is not.
  const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  _mm256_storeu_ps(out, _mm256_div_ps(values, _mm256_set1_ps(255.0F)));
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store_sixteen(__m128i bytes, float* out) {
  store_eight(bytes, out);
  store_eight(_mm_srli_si128(bytes, 8), out + 8);
}
[[gnu::target("avx2"), gnu::always_inline]] inline void store_sixteen(__m128i bytes, uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

/// 16 pixels at a time, in three loads of 16 bytes. @return the pixels done
template <class Value>
[[gnu::target("avx2")]] size_t write_pixels_avx2(const uint8_t* pixels, size_t plane, Value* out) {
  constexpr size_t kBlock = 16;
  // Where colour c of 16 pixels lies in the first, second and third 16 bytes.
  alignas(16) int8_t places[3][3][16];
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 16; ++i) {
      const int at = 3 * i + c;
      for (int part = 0; part < 3; ++part) {
        places[c][part][i] = at / 16 == part ? static_cast<int8_t>(at % 16) : int8_t{-1};
      }
    }
  }
  __m128i shuffles[3][3];
  for (int c = 0; c < 3; ++c) {
    for (int part = 0; part < 3; ++part) {
      shuffles[c][part] = _mm_load_si128(reinterpret_cast<const __m128i*>(places[c][part]));
    }
  }
  size_t i = 0;
  for (; i + kBlock <= plane; i += kBlock) {
    const auto* from = reinterpret_cast<const __m128i*>(pixels + 3 * i);
    const __m128i parts[3] = {
        _mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2)};
    for (size_t c = 0; c < 3; ++c) {
      const __m128i colour = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(parts[0], shuffles[c][0]),
                                                       _mm_shuffle_epi8(parts[1], shuffles[c][1])),
                                          _mm_shuffle_epi8(parts[2], shuffles[c][2]));
      store_sixteen(colour, out + c * plane + i);
    }
  }
  return i;
}

#endif

template <class Value>
void write_planes_of(const Image& image, Value* out) {
  const size_t plane = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  size_t done = 0;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) done = write_pixels_avx2(image.pixels.data(), plane, out);
#endif
  write_pixels(image.pixels.data(), done, plane, out);
}

/// Pillow's weights of red, green and blue, in units of 1 / 65,536.
template <class Value>
void write_grey(const Image& image, Value* out) {
  const size_t plane = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  for (size_t i = 0; i < plane; ++i) {
    const uint8_t* pixel = &image.pixels[3 * i];
    const uint32_t sum = pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U;
    store_one(static_cast<uint8_t>(sum >> 16U), out + i);
  }
}

template <class Value>
void write_picture_of(const Image& image, const at::Tensor& batch, int64_t place) {
  Value* out = batch.mutable_data_ptr<Value>() + place * batch.stride(0);
  if (batch.size(1) == 1) {
    write_grey(image, out);
    return;
  }
  write_planes(image, out);
  if (batch.size(1) == 3) return;
  const size_t plane = image.pixels.size() / 3;
  for (size_t i = 0; i < plane; ++i)
    store_one(image.alpha.empty() ? uint8_t{255} : image.alpha[i], out + 3 * plane + i);
}

}  // namespace

void write_planes(const Image& image, float* out) {
  write_planes_of(image, out);
}

void write_planes(const Image& image, uint8_t* out) {
  write_planes_of(image, out);
}

void write_picture(const Image& image, const at::Tensor& batch, int64_t place) {
  if (batch.scalar_type() == at::kByte) {
    write_picture_of<uint8_t>(image, batch, place);
  } else {
    write_picture_of<float>(image, batch, place);
  }
}

at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu) {
  // LibTorch asks the thread's current GPU about its streams, and would open a context on the first one.
  const c10::OptionalDeviceGuard on_gpu(gpu);
  return at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(gpu.has_value()));
}

at::Tensor floats_from_bytes(const at::Tensor& bytes) {
  // The divisor is a tensor: with a number from the host, LibTorch multiplies by the reciprocal, which rounds differently.
  const at::Tensor floats = bytes.to(at::kFloat);
  return floats.div_(at::full({}, 255.0, floats.options()));
}

at::Tensor as_floats(const at::Tensor& pictures) {
  return pictures.scalar_type() == at::kByte ? floats_from_bytes(pictures) : pictures;
}

}  // namespace dalle2
