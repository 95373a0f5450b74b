// SPDX-License-Identifier: MIT
// Kernels of GroupNorm, scale, shift and SiLU over planar maps [B, C, pixels]: x and dx of ELEMENT, y and dy of RESULT. A plane is a channel of a sample, and is cut into
// chunks; sums are added up in one order, so that they are the same each time. With n = (x - mean) rstd of its group,
// z = n gain + offset, gain = weight (scale + 1), offset = bias (scale + 1) + shift, y = z sigmoid(z).

constexpr int kMostThreads = 256;

/// Adjacent elements that a thread reads and writes at once.
template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T values[kWidth];
};

/// The pixels of this block: chunk blockIdx.y of plane blockIdx.x.
struct Chunk {
  long long plane_begin;  // element
  int begin, end;         // packs of the plane

  __device__ Chunk(int packs, int packs_of_chunk, int pixels)
      : plane_begin(static_cast<long long>(blockIdx.x) * pixels),
        begin(static_cast<int>(blockIdx.y) * packs_of_chunk),
        end(begin + packs_of_chunk < packs ? begin + packs_of_chunk : packs) {}
};

/// Two sums over a block; every thread gets both.
template <class T>
struct Pair {
  T first, second;
};

template <class T>
__device__ Pair<T> sums_of_block(T first, T second) {
  __shared__ T firsts[kMostThreads], seconds[kMostThreads];
  __syncthreads();  // an earlier call may still be read
  firsts[threadIdx.x] = first;
  seconds[threadIdx.x] = second;
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      firsts[threadIdx.x] += firsts[threadIdx.x + half];
      seconds[threadIdx.x] += seconds[threadIdx.x + half];
    }
  }
  __syncthreads();
  return {firsts[0], seconds[0]};
}

struct Affine {
  float gain, offset;

  /// @param scale_shift [B, 2 C] or null
  __device__ Affine(const float* weight,
                    const float* bias,
                    const float* scale_shift,
                    int channels,
                    long long plane) {
    const int channel = static_cast<int>(plane % channels);
    const long long sample = plane / channels;
    const float* const row = scale_shift + 2 * sample * channels;
    const float scale = scale_shift == nullptr ? 1.0f : 1.0f + row[channel];
    const float shift = scale_shift == nullptr ? 0.0f : row[channels + channel];
    gain = weight[channel] * scale;
    offset = bias[channel] * scale + shift;
  }
};

__device__ inline float sigmoid(float z) {
  return 1.0f / (1.0f + expf(-z));
}
/// dz of dy.
__device__ inline float silu_backward(float z, float dy) {
  const float s = sigmoid(z);
  return dy * (s + z * s * (1.0f - s));
}

/// Thread 0 writes the sums of this block's chunk. @param parts [planes, chunks, 2]
__device__ inline void put_part(float* parts, float first, float second) {
  if (threadIdx.x > 0) return;
  float* const to = parts + 2 * (static_cast<long long>(blockIdx.x) * gridDim.y + blockIdx.y);
  to[0] = first;
  to[1] = second;
}

/// The sum of a chunk, and of the squares about its mean. @param parts [planes, chunks, 2]
template <int kWidth>
__device__ void plane_sums(
    const ELEMENT* x, float* parts, int pixels, int packs, int packs_of_chunk) {
  const Chunk chunk(packs, packs_of_chunk, pixels);
  const Pack<ELEMENT, kWidth>* const from =
      reinterpret_cast<const Pack<ELEMENT, kWidth>*>(x + chunk.plane_begin);
  float sum = 0, squares = 0;
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += blockDim.x) {
    const Pack<ELEMENT, kWidth> pack = from[i];
    for (int k = 0; k < kWidth; ++k) sum += load(pack.values[k]);
  }
  const float all = sums_of_block(sum, 0.0f).first;
  const float mean = all / static_cast<float>((chunk.end - chunk.begin) * kWidth);
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += blockDim.x) {
    const Pack<ELEMENT, kWidth> pack = from[i];
    for (int k = 0; k < kWidth; ++k) {
      const float d = load(pack.values[k]) - mean;
      squares += d * d;
    }
  }
  const float all_squares = sums_of_block(squares, 0.0f).first;
  put_part(parts, all, all_squares);
}

/// The sums of a plane's chunks.
__device__ inline Pair<double> sums_of_plane(const float* parts, long long plane, int chunks) {
  Pair<double> sums = {0, 0};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const float* const part = parts + 2 * (plane * chunks + chunk);
    sums.first += static_cast<double>(part[0]);
    sums.second += static_cast<double>(part[1]);
  }
  return sums;
}

/// Mean and 1 / deviation of group blockIdx.x. @param chunk_pixels of all chunks of a plane but the last
/// @param moments [groups of all samples, 2]
KERNEL group_moments(const float* parts,
                     float* moments,
                     int members,
                     int pixels,
                     int chunks,
                     int chunk_pixels,
                     float eps) {
  const long long first = static_cast<long long>(blockIdx.x) * members * chunks;
  const double count = static_cast<double>(pixels) * members;
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < members * chunks; i += blockDim.x)
    sum += static_cast<double>(parts[2 * (first + i)]);
  const double mean = sums_of_block(sum, 0.0).first / count;
  double squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < members * chunks; i += blockDim.x) {
    const bool is_last = i % chunks == chunks - 1;
    const double n = is_last ? pixels - (chunks - 1) * chunk_pixels : chunk_pixels;
    const double off = static_cast<double>(parts[2 * (first + i)]) / n - mean;
    squares += static_cast<double>(parts[2 * (first + i) + 1]) + n * off * off;
  }
  const double variance = sums_of_block(squares, 0.0).first / count;
  if (threadIdx.x > 0) return;
  moments[2 * blockIdx.x] = static_cast<float>(mean);
  moments[2 * blockIdx.x + 1] = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(eps)));
}

/// Plane blockIdx.x on its way to z = (x - mean) factor + offset.
struct NormalizedPlane {
  float mean, factor, offset;

  __device__ NormalizedPlane(const float* moments,
                             const float* weight,
                             const float* bias,
                             const float* scale_shift,
                             int channels,
                             int members) {
    const Affine affine(weight, bias, scale_shift, channels, blockIdx.x);
    const float* const of_group = moments + 2 * (blockIdx.x / members);
    mean = of_group[0];
    factor = of_group[1] * affine.gain;
    offset = affine.offset;
  }

  /// @param d x - mean
  __device__ float z_of(float d) const { return d * factor + offset; }
};

template <int kWidth>
__device__ void normalize(const ELEMENT* x,
                          const float* moments,
                          const float* weight,
                          const float* bias,
                          const float* scale_shift,
                          RESULT* y,
                          int channels,
                          int members,
                          int pixels,
                          int packs,
                          int packs_of_chunk) {
  const Chunk chunk(packs, packs_of_chunk, pixels);
  const NormalizedPlane plane(moments, weight, bias, scale_shift, channels, members);
  const Pack<ELEMENT, kWidth>* const from =
      reinterpret_cast<const Pack<ELEMENT, kWidth>*>(x + chunk.plane_begin);
  Pack<RESULT, kWidth>* const to = reinterpret_cast<Pack<RESULT, kWidth>*>(y + chunk.plane_begin);
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += blockDim.x) {
    const Pack<ELEMENT, kWidth> pack = from[i];
    Pack<RESULT, kWidth> result;
    for (int k = 0; k < kWidth; ++k) {
      const float z = plane.z_of(load(pack.values[k]) - plane.mean);
      store(result.values[k], z * sigmoid(z));
    }
    to[i] = result;
  }
}

/// The sums of dz and of dz (x - mean). @param parts [planes, chunks, 2]
template <int kWidth>
__device__ void gradient_sums(const RESULT* dy,
                              const ELEMENT* x,
                              const float* moments,
                              const float* weight,
                              const float* bias,
                              const float* scale_shift,
                              float* parts,
                              int channels,
                              int members,
                              int pixels,
                              int packs,
                              int packs_of_chunk) {
  const Chunk chunk(packs, packs_of_chunk, pixels);
  const NormalizedPlane plane(moments, weight, bias, scale_shift, channels, members);
  const Pack<ELEMENT, kWidth>* const from =
      reinterpret_cast<const Pack<ELEMENT, kWidth>*>(x + chunk.plane_begin);
  const Pack<RESULT, kWidth>* const from_dy =
      reinterpret_cast<const Pack<RESULT, kWidth>*>(dy + chunk.plane_begin);
  float sum = 0, product = 0;
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += blockDim.x) {
    const Pack<ELEMENT, kWidth> pack = from[i];
    const Pack<RESULT, kWidth> pack_dy = from_dy[i];
    for (int k = 0; k < kWidth; ++k) {
      const float d = load(pack.values[k]) - plane.mean;
      const float dz = silu_backward(plane.z_of(d), load(pack_dy.values[k]));
      sum += dz;
      product += dz * d;
    }
  }
  const Pair<float> all = sums_of_block(sum, product);
  put_part(parts, all.first, all.second);
}

/// Of group blockIdx.x with N elements: the gradients of gain and offset of its planes, and what all of its elements lose,
/// base = rstd sum(gain dz) / N and slope = rstd^2 sum(gain dz n) / N.
/// @param dgain, doffset [planes] @param losses [groups of all samples, 2]
KERNEL group_gradients(const float* parts,
                       const float* moments,
                       const float* weight,
                       const float* bias,
                       const float* scale_shift,
                       float* dgain,
                       float* doffset,
                       float* losses,
                       int channels,
                       int members,
                       int pixels,
                       int chunks) {
  const long long first = static_cast<long long>(blockIdx.x) * members;
  const double rstd = static_cast<double>(moments[2 * blockIdx.x + 1]);
  double sum = 0, product = 0;
  for (int i = static_cast<int>(threadIdx.x); i < members; i += blockDim.x) {
    const long long plane = first + i;
    const Pair<double> sums = sums_of_plane(parts, plane, chunks);
    const Affine affine(weight, bias, scale_shift, channels, plane);
    dgain[plane] = static_cast<float>(sums.second * rstd);
    doffset[plane] = static_cast<float>(sums.first);
    sum += sums.first * static_cast<double>(affine.gain);
    product += sums.second * rstd * static_cast<double>(affine.gain);
  }
  const Pair<double> all = sums_of_block(sum, product);
  if (threadIdx.x > 0) return;
  const double count = static_cast<double>(pixels) * members;
  losses[2 * blockIdx.x] = static_cast<float>(all.first / count * rstd);
  losses[2 * blockIdx.x + 1] = static_cast<float>(all.second / count * rstd * rstd);
}

/// dx = rstd gain dz - base - (x - mean) slope.
template <int kWidth>
__device__ void input_gradients(const RESULT* dy,
                                const ELEMENT* x,
                                const float* moments,
                                const float* losses,
                                const float* weight,
                                const float* bias,
                                const float* scale_shift,
                                ELEMENT* dx,
                                int channels,
                                int members,
                                int pixels,
                                int packs,
                                int packs_of_chunk) {
  const Chunk chunk(packs, packs_of_chunk, pixels);
  const NormalizedPlane plane(moments, weight, bias, scale_shift, channels, members);
  const float base = losses[2 * (blockIdx.x / members)];
  const float slope = losses[2 * (blockIdx.x / members) + 1];
  const Pack<ELEMENT, kWidth>* const from =
      reinterpret_cast<const Pack<ELEMENT, kWidth>*>(x + chunk.plane_begin);
  const Pack<RESULT, kWidth>* const from_dy =
      reinterpret_cast<const Pack<RESULT, kWidth>*>(dy + chunk.plane_begin);
  Pack<ELEMENT, kWidth>* const to = reinterpret_cast<Pack<ELEMENT, kWidth>*>(dx + chunk.plane_begin);
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += blockDim.x) {
    Pack<ELEMENT, kWidth> pack = from[i];
    const Pack<RESULT, kWidth> pack_dy = from_dy[i];
    for (int k = 0; k < kWidth; ++k) {
      const float d = load(pack.values[k]) - plane.mean;
      const float dz = silu_backward(plane.z_of(d), load(pack_dy.values[k]));
      store(pack.values[k], dz * plane.factor - base - d * slope);
    }
    to[i] = pack;
  }
}

/// Gradients of weight, bias, scale and shift from those of gain and offset, for channel blockIdx.x blockDim.x + threadIdx.x.
/// @param dscale_shift [B, 2 C], null without scale_shift
KERNEL affine_gradients(const float* dgain,
                        const float* doffset,
                        const float* weight,
                        const float* bias,
                        const float* scale_shift,
                        float* dweight,
                        float* dbias,
                        float* dscale_shift,
                        int batch,
                        int channels) {
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= channels) return;
  float of_weight = 0, of_bias = 0;
  for (long long sample = 0; sample < batch; ++sample) {
    const long long plane = sample * channels + channel;
    const float scale =
        scale_shift == nullptr ? 1.0f : 1.0f + scale_shift[2 * sample * channels + channel];
    of_weight += dgain[plane] * scale;
    of_bias += doffset[plane] * scale;
    if (dscale_shift == nullptr) continue;
    float* const row = dscale_shift + 2 * sample * channels;
    row[channel] = dgain[plane] * weight[channel] + doffset[plane] * bias[channel];
    row[channels + channel] = doffset[plane];
  }
  dweight[channel] = of_weight;
  dbias[channel] = of_bias;
}

#define OF_WIDTH(width)                                                                          \
  KERNEL plane_sums_##width(                                                                     \
      const ELEMENT* x, float* parts, int pixels, int packs, int packs_of_chunk) {               \
    plane_sums<width>(x, parts, pixels, packs, packs_of_chunk);                                  \
  }                                                                                              \
  KERNEL normalize_##width(const ELEMENT* x,                                                     \
                           const float* moments,                                                 \
                           const float* weight,                                                  \
                           const float* bias,                                                    \
                           const float* scale_shift,                                             \
                           RESULT* y,                                                            \
                           int channels,                                                         \
                           int members,                                                          \
                           int pixels,                                                           \
                           int packs,                                                            \
                           int packs_of_chunk) {                                                 \
    normalize<width>(x, moments, weight, bias, scale_shift, y, channels, members, pixels, packs, \
                     packs_of_chunk);                                                            \
  }                                                                                              \
  KERNEL gradient_sums_##width(const RESULT* dy,                                                \
                               const ELEMENT* x,                                                 \
                               const float* moments,                                             \
                               const float* weight,                                              \
                               const float* bias,                                                \
                               const float* scale_shift,                                         \
                               float* parts,                                                     \
                               int channels,                                                     \
                               int members,                                                      \
                               int pixels,                                                       \
                               int packs,                                                        \
                               int packs_of_chunk) {                                             \
    gradient_sums<width>(dy, x, moments, weight, bias, scale_shift, parts, channels, members,    \
                         pixels, packs, packs_of_chunk);                                         \
  }                                                                                              \
  KERNEL input_gradients_##width(const RESULT* dy,                                              \
                                 const ELEMENT* x,                                               \
                                 const float* moments,                                           \
                                 const float* losses,                                            \
                                 const float* weight,                                            \
                                 const float* bias,                                              \
                                 const float* scale_shift,                                       \
                                 ELEMENT* dx,                                                    \
                                 int channels,                                                   \
                                 int members,                                                    \
                                 int pixels,                                                     \
                                 int packs,                                                      \
                                 int packs_of_chunk) {                                           \
    input_gradients<width>(dy, x, moments, losses, weight, bias, scale_shift, dx, channels,      \
                           members, pixels, packs, packs_of_chunk);                              \
  }

OF_WIDTH(1)
OF_WIDTH(4)
