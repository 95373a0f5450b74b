// SPDX-License-Identifier: MIT
// The mask of kernels/dropout_mask.h: element i of a sample depends only on the sample's key and i. The address is given, or, where
// `seed` is not null, follows from the number there and `place`.

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
  const long long begin = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long i = begin; i < count; i += step) {
    const unsigned long long key = dropout_key(own, first_sample + i / per_sample);
    const bool is_kept = dropout_bits(key, static_cast<unsigned long long>(i % per_sample)) < threshold;
    store(mask[i], is_kept ? kept_value : 0.0f);
  }
}
