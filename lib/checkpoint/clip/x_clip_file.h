// SPDX-License-Identifier: MIT
// Files of CLIPs of x-clip: the state dict of its class CLIP. The weights do not say all that such a
// CLIP was made with: the arguments of the constructor come from a config, or from a file beside them.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/clip/raw_clip.h"
#include "config/clip/x_clip_config.h"

namespace dalle2 {

/// Of the file with the arguments.
inline constexpr const char* kXClipConfigName = "x_clip_config.json";

/// Without the tensors that only its training needs.
struct XClipFile {
  XClipConfig config;
  StateDict weights;                  ///< x-clip's names
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
};

/// Whether these tensors are those of a CLIP of x-clip, by their names.
bool is_x_clip(const StateDict& tensors);

/// @param raw what was read from `path` @param config the arguments that the CLIP was made with; none:
/// those in the file beside it
/// @throws ConfigError without arguments, DataError for a file of arguments that cannot be read and for
/// weights of another CLIP: it lists what does not fit
XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config);

}  // namespace dalle2
