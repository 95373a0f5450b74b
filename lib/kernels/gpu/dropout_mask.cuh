// SPDX-License-Identifier: MIT
// The mask of kernels/dropout_mask.h: element i of a sample depends only on the sample's key and i. Address and first sample are given,
// or, where `seed` is not null, follow from the two numbers there and `place`.

KERNEL dropout_mask(ELEMENT* mask,
                    unsigned long long address,
                    const unsigned long long* seed,
                    long long place,
                    long long first_sample,
                    long long per_sample,
                    long long count,
                    unsigned threshold,
                    float kept_value) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const unsigned long long own = seed == nullptr ? address : dropout_address(*seed, place);
  const long long first = seed == nullptr ? first_sample : static_cast<long long>(seed[1]);
  const long long begin = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long i = begin; i < count; i += step) {
    const unsigned long long key = dropout_key(own, first + i / per_sample);
    const bool is_kept = dropout_bits(key, static_cast<unsigned long long>(i % per_sample)) < threshold;
    store(mask[i], is_kept ? kept_value : 0.0f);
  }
}
