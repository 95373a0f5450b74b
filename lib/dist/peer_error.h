// SPDX-License-Identifier: MIT
#pragma once

#include "base/error.h"

namespace dalle2 {

/// Another rank is gone, stuck, or in another operation (exit 6). Nothing can be saved after it: that
/// would take all ranks.
class PeerError : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

}  // namespace dalle2
