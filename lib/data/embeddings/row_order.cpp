// SPDX-License-Identifier: MIT
#include "data/embeddings/row_order.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace dalle2 {
namespace {

/// The finaliser of SplitMix64 (Steele et al. 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

struct Slot {
  int64_t unit, offset;  // which one, and the place in it
};

/// Where a place lies in units of `full` places, but for one that has fewer.
Slot slot_of(int64_t place, int64_t full, int64_t short_unit, int64_t short_size) {
  if (place < short_unit * full) return {place / full, place % full};
  place -= short_unit * full;
  if (place < short_size) return {short_unit, place};
  place -= short_size;
  return {short_unit + 1 + place / full, place % full};
}

}  // namespace

Permutation::Permutation(int64_t size, SampleRandom keys) : size_(static_cast<uint64_t>(size)) {
  D2_CHECK(size > 0 && size < (int64_t{1} << 60), "a permutation of {}", size);
  while ((uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  for (uint64_t& key : keys_) {
    key = uint64_t{keys()} << 32;
    key |= keys();
  }
}

uint64_t Permutation::round(uint64_t half, size_t number) const {
  return mixed(half ^ keys_[number]) & ((uint64_t{1} << half_bits_) - 1);
}

int64_t Permutation::operator()(int64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(place);
  do {
    Halves halves{value >> half_bits_, value & mask};
    for (size_t i = 0; i < kRounds; ++i)
      halves = {halves.right, halves.left ^ round(halves.right, i)};
    value = (halves.left << half_bits_) | halves.right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

int64_t Permutation::place_of(int64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto place = static_cast<uint64_t>(value);
  do {
    Halves halves{place >> half_bits_, place & mask};
    for (size_t i = kRounds; i > 0; --i)
      halves = {halves.right ^ round(halves.left, i - 1), halves.left};
    place = (halves.left << half_bits_) | halves.right;
  } while (place >= size_);
  return static_cast<int64_t>(place);
}

RowOrder::RowOrder(int64_t rows, int64_t block_rows, int64_t seed, int64_t epoch)
    : seed_(seed),
      epoch_(epoch),
      block_rows_(std::min(block_rows, rows)),
      blocks_((rows + block_rows_ - 1) / block_rows_),
      short_rows_(rows - (blocks_ - 1) * block_rows_),
      block_at_(blocks_, random("blocks", 0)),
      short_place_(block_at_.place_of(blocks_ - 1)) {}

SampleRandom RowOrder::random(const char* purpose, int64_t ordinal) const {
  return {seed_, epoch_, "order of rows", purpose, ordinal};
}

int64_t RowOrder::rows_of_group(int64_t group) const {
  const int64_t blocks = std::min(kMixedBlocks, blocks_ - group * kMixedBlocks);
  const bool has_short = short_place_ / kMixedBlocks == group;
  return blocks * block_rows_ - (has_short ? block_rows_ - short_rows_ : 0);
}

std::vector<int64_t> RowOrder::rows_at(int64_t begin, int64_t count) const {
  const int64_t group_of_short = short_place_ / kMixedBlocks;
  std::vector<int64_t> rows;
  std::optional<Permutation> in_group;
  int64_t group = -1;  // of in_group
  for (int64_t place = begin; place < begin + count; ++place) {
    const Slot at =
        slot_of(place, kMixedBlocks * block_rows_, group_of_short, rows_of_group(group_of_short));
    if (at.unit != group) {
      group = at.unit;
      in_group.emplace(rows_of_group(group), random("rows", group));
    }
    // A short block of another group is behind the end of this one.
    const int64_t short_unit = group == group_of_short ? short_place_ % kMixedBlocks : kMixedBlocks;
    const Slot in_block = slot_of((*in_group)(at.offset), block_rows_, short_unit, short_rows_);
    const int64_t block = block_at_(group * kMixedBlocks + in_block.unit);
    rows.push_back(block * block_rows_ + in_block.offset);
  }
  return rows;
}

}  // namespace dalle2
