// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace dalle2 {

/// Warns of pictures that are smaller than what a CLIP sees, and so are enlarged for it: of the first one, and at 100,
/// 1,000, ... of them. Any number of threads may use it.
class SmallPictures {
 public:
  /// @param side of the square that the CLIP sees, pixels
  explicit SmallPictures(int64_t side) : side_(side) {}

  /// @param content of a picture's file. One that cannot be read is not counted: who decodes it says so.
  /// @param origin names the picture
  void look_at(const std::string& content, const std::string& origin);

 private:
  int64_t side_;
  std::atomic<int64_t> count_ = 0;
};

}  // namespace dalle2
