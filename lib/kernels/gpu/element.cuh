// SPDX-License-Identifier: MIT
// What elements of maps are in a GPU's memory. First part of every program (kernel_launcher.h): CUDA C++ that includes nothing, so that
// NVRTC compiles it on any machine, and the tests for the processor.

struct Float32 {
  float value;
};
struct BFloat16 {
  unsigned short bits;  // the upper half of a float
};
struct Float16 {
  unsigned short bits;
};

__device__ inline float load(Float32 from) {
  return from.value;
}
__device__ inline void store(Float32& to, float value) {
  to.value = value;
}

__device__ inline float load(BFloat16 from) {
  return __uint_as_float(static_cast<unsigned>(from.bits) << 16);
}
/// Rounds to the nearest, ties to even; NaN stays NaN.
__device__ inline void store(BFloat16& to, float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<unsigned short>(value != value ? 0x7FC0u : rounded);
}

#ifdef __CUDACC_RTC__
__device__ inline float float_of_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline unsigned short half_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

__device__ inline float load(Float16 from) {
  return float_of_half(from.bits);
}
__device__ inline void store(Float16& to, float value) {
  to.bits = half_of_float(value);
}
