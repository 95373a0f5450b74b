// SPDX-License-Identifier: MIT
// The arguments of a CLIP whose weights do not say all that it was made with.
#pragma once

#include <variant>

#include "config/clip/coca_config.h"
#include "config/clip/x_clip_config.h"

namespace dalle2 {

/// `make`, beside them, says whose they are.
using ClipArguments = std::variant<XClipConfig, CocaConfig>;
template <>
struct TagTraits<ClipArguments> {
  static constexpr const char* key = nullptr;
  static constexpr const char* key_beside = "make";
};

}  // namespace dalle2
