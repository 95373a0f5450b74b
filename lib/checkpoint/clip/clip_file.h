// SPDX-License-Identifier: MIT
// Files of CLIPs, ours and others'.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/clip/raw_clip.h"
#include "checkpoint/state_dict.h"
#include "config/clip/clip_network_config.h"

namespace dalle2 {

/// Where open_clip looks for the config, beside the weights.
inline constexpr const char* kOpenClipConfigName = "open_clip_config.json";

struct ClipFile {
  ClipNetworkConfig config;
  StateDict weights;                  ///< open_clip's names, types as in the file
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
  std::string format;                 ///< whose file it is, for messages
};

/// What the caller knows of a file that does not say it itself.
struct ClipFileHints {
  std::optional<ClipNetworkConfig> config;  ///< instead of all that the file says
  std::optional<bool> quick_gelu;           ///< the activation of an open_clip model without config
};

/// Reads what OpenAI (TorchScript of which the parameters alone are taken, or a state dict), open_clip
/// (.pt or safetensors, with an open_clip_config.json beside it), Hugging Face (CLIPModel as safetensors
/// or .bin, with its config.json beside it) and write_clip_file() write.
/// @throws DataError for a damaged file, one that is no CLIP, and weights that are not finite, by the
/// name of the tensor
ClipFile read_clip_file(const std::string& path, const ClipFileHints& hints = {});
/// The same of what was read from `path`.
ClipFile as_clip_file(RawClip raw, const std::string& path, const ClipFileHints& hints = {});

/// Writes weights as open_clip loads them, strictly: a state dict as safetensors or, by the ending, as
/// .pt. The config lies in the file and, as open_clip wants it, in open_clip_config.json beside it.
/// @throws ConfigError for another ending, ResourceError if the disk is full
void write_clip_file(const std::string& path, const ClipFile& clip);

}  // namespace dalle2
