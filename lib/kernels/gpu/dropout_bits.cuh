// SPDX-License-Identifier: MIT
// Random bits by number, for dropout: the same on every device. Included by the program of GPUs and by the processor's.

/// The address of a place in the network, in the pass that has this seed.
__device__ inline unsigned long long dropout_address(unsigned long long seed, long long place) {
  const unsigned long long address = seed ^ (static_cast<unsigned long long>(place) * 0x9E3779B97F4A7C15ULL);
  return (address ^ (address >> 30)) * 0xBF58476D1CE4E5B9ULL;
}

/// The key of a sample. @param address of the pass and the place in the network
__device__ inline unsigned long long dropout_key(unsigned long long address, long long sample) {
  const unsigned long long mixed = address + static_cast<unsigned long long>(sample) * 0x9E3779B97F4A7C15ULL;
  return (mixed ^ (mixed >> 27)) * 0xBF58476D1CE4E5B9ULL;
}

/// 24 bits: those of output number `index` of SplitMix64 that begins at the key (Steele, Lea & Flood 2014).
__device__ inline unsigned dropout_bits(unsigned long long key, unsigned long long index) {
  unsigned long long x = key + (index + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<unsigned>((x ^ (x >> 31)) >> 40);
}
