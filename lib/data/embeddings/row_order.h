// SPDX-License-Identifier: MIT
// The order in which an epoch takes rows, by address: nothing of it is held in memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/pictures/preprocess.h"

namespace dalle2 {

/// A permutation of [0, size), computed for each place alone: a Feistel network with a key a round, walked
/// until it is back in range (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains").
class Permutation {
 public:
  /// @param keys of the rounds are drawn from it
  Permutation(int64_t size, SampleRandom keys);
  int64_t operator()(int64_t place) const;
  /// The place of a value.
  int64_t place_of(int64_t value) const;

 private:
  static constexpr size_t kRounds = 8;
  struct Halves {
    uint64_t left, right;
  };
  uint64_t round(uint64_t half, size_t number) const;

  uint64_t size_;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_;
};

/// Blocks of rows in a permuted order, and the rows of each kMixedBlocks of them permuted together. With
/// one block of all rows it is a permutation of the rows.
class RowOrder {
 public:
  /// Blocks whose rows come mixed: as many have to be at hand at a time.
  static constexpr int64_t kMixedBlocks = 16;

  /// @param block_rows at least 1; the last block may have fewer
  RowOrder(int64_t rows, int64_t block_rows, int64_t seed, int64_t epoch);
  /// Those at places [begin, begin + count) of the epoch.
  std::vector<int64_t> rows_at(int64_t begin, int64_t count) const;

 private:
  SampleRandom random(const char* purpose, int64_t ordinal) const;
  int64_t rows_of_group(int64_t group) const;

  int64_t seed_, epoch_;
  int64_t block_rows_, blocks_;
  int64_t short_rows_;  // of the last block
  Permutation block_at_;
  int64_t short_place_;  // of the last block, among the blocks
};

}  // namespace dalle2
