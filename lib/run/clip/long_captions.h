// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// Warns of captions that are too long for a CLIP: of the first one, and at 100, 1,000, ... of them.
class LongCaptions {
 public:
  /// @param cut captions of a batch, which were cut @param room tokens that a caption may have
  void add(const std::vector<std::string>& cut, int64_t room);

 private:
  int64_t count_ = 0;
};

}  // namespace dalle2
