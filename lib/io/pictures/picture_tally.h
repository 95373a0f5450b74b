// SPDX-License-Identifier: MIT
// Counts of pictures that do not look in a training as their owner sees them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/pictures/image.h"

namespace dalle2 {

/// Where the largest value of a set's 16-bit grey is below this, the pictures are almost black.
inline constexpr int kDarkGrey = 16'384;

struct PictureTally {
  int64_t pictures = 0;     ///< that were added
  int64_t grey = 0;         ///< pictures without a colour
  int64_t transparent = 0;  ///< pictures that are transparent in part
  int64_t rotated = 0;      ///< pictures whose EXIF orientation is not 1
  int64_t deep_grey = 0;    ///< grey pictures with 16 bits
  int grey_largest = 0;     ///< value of those that 65,535 makes white

  int64_t looked_at = 0, bytes = 0;  ///< by look_at(): files and their sizes

  void add(const PictureFacts& facts);
  void add(const PictureTally& other);
  /// Adds a picture of a few that stand for all; one that cannot be read is not counted.
  /// @return false if enough of them have been seen
  bool look_at(const std::string& content);
  bool needs_range() const { return grey_largest > 0 && grey_largest < kDarkGrey; }

  /// A line for each kind that was found, with what to do about it.
  /// @param options with which the pictures are read: what they settle is left out
  std::vector<std::string> describe(const DecodeOptions& options = {}) const;
};

}  // namespace dalle2
