// SPDX-License-Identifier: MIT
// Files of CLIPs of x-clip: the state dict of its class CLIP.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/clip/raw_clip.h"
#include "checkpoint/state_dict.h"
#include "config/clip/x_clip_config.h"

namespace dalle2 {

/// Where the arguments of a CLIP are looked for that no config gives, beside the weights.
inline constexpr const char* kXClipConfigName = "x_clip_config.json";

struct XClipFile {
  XClipConfig config;
  StateDict weights;                  ///< x-clip's names, without what only its training needs
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
};

/// Whether tensors are those of such a CLIP, by their names.
bool is_x_clip(const StateDict& tensors);

/// @param raw what was read from `path` @param config the arguments that the CLIP was made with; none:
/// those in kXClipConfigName
/// @throws DataError for weights of another network, with all tensors that do not fit and the arguments
/// that they follow from; ConfigError if there are no arguments
XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config);

}  // namespace dalle2
