// SPDX-License-Identifier: MIT
// Files of CLIPs, ours and others'.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/clip/clip_network_config.h"
#include "config/clip/x_clip_config.h"

namespace dalle2 {

/// The entry of a file that holds the merges of a vocabulary of its own, as text.
inline constexpr const char* kClipMergesKey = "clip_merges";
/// The entry of a decoder's or prior's file that says of which CLIP its embeddings were: clip_sha256().
inline constexpr const char* kClipIdentityKey = "clip_weights_sha256";
/// What a trainer's files hold besides weights and config: each file that is made of one keeps them.
inline constexpr const char* kCompanionKeys[] = {kClipMergesKey, kClipIdentityKey};
/// The CLIP that such a file names; empty if it names none.
std::string clip_identity_in(const Cursor& root);
/// In the metadata of safetensors, and beside the state dict of a .pt.
inline constexpr const char* kClipConfigKey = "clip_config";

struct RawClip {
  StateDict tensors;                         ///< without "module.", of data parallelism, in front
  std::map<std::string, std::string> texts;  ///< what else the file says
  bool is_program = false;                   ///< TorchScript: only its parameters are read

  /// Of a vocabulary of its own; none: OpenAI's.
  std::optional<std::string> merges() const;
};

/// @throws DataError for a damaged file, or one that holds no tensors by name
RawClip read_raw_clip(const std::string& path);

struct NamedClip {
  StateDict tensors;             ///< open_clip's names
  bool is_hugging_face = false;  ///< the file's own
};

/// Takes off "text.", which open_clip's CustomTextCLIP puts in front; drops what is no weight
/// (positions, masks, OpenAI's three numbers); joins the queries, keys and values of Hugging Face's
/// CLIPModel.
/// @param where precedes the text of errors @throws DataError naming a tensor that is missing
NamedClip open_clip_names(StateDict tensors, const std::string& where);

/// Where open_clip looks for the config, beside the weights.
inline constexpr const char* kOpenClipConfigName = "open_clip_config.json";

struct ClipFile {
  ClipNetworkConfig config;
  StateDict weights;                  ///< open_clip's names, types as in the file
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
  bool is_open_clip = false;          ///< by open_clip, whose tokenizer has kOpenClipWords
};

/// What the caller knows of a file that does not say it itself.
struct ClipFileHints {
  std::optional<XClipConfig> arguments = {};    ///< of x-clip's CLIP, which the file has to be then
  std::optional<std::string> config_path = {};  ///< instead of the config in or beside the file
  // Of a file without a config.
  std::optional<bool> quick_gelu = {};
  std::optional<std::vector<int64_t>> heads = {};  ///< of the image and of the text tower
};

/// Reads what OpenAI (TorchScript of which the parameters alone are taken, or a state dict), open_clip
/// (.pt or safetensors, with an open_clip_config.json beside it), Hugging Face (CLIPModel as safetensors
/// or .bin, with its config.json beside it) and write_clip_file() write. Warns of what it has to assume.
/// @throws ConfigError for hints on a file that says it itself, DataError for a damaged file and one that is
/// no CLIP
ClipFile read_clip_file(const std::string& path, const ClipFileHints& hints = {});
/// The same of what was read from `path`.
ClipFile as_clip_file(RawClip raw, const std::string& path, const ClipFileHints& hints = {});

/// Writes weights as open_clip loads them, strictly: a state dict as safetensors or, by the ending, as
/// .pt. The config lies in the file and, as open_clip wants it, in open_clip_config.json beside it.
/// @throws ConfigError for another ending, ResourceError if the disk is full
void write_clip_file(const std::string& path, const ClipFile& clip);

// CLIPs of x-clip: the state dict of its class CLIP. The weights do not say all that such a CLIP was
// made with: the arguments of the constructor come from a config, or from a file beside them.

inline constexpr const char* kXClipConfigName = "x_clip_config.json";

/// Without the tensors that only its training needs.
struct XClipFile {
  XClipConfig config;
  StateDict weights;                  ///< x-clip's names
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
};

/// Whether these tensors are those of a CLIP of x-clip, by their names.
bool is_x_clip(const StateDict& tensors);

/// @param raw what was read from `path` @param hints with the arguments that the CLIP was made with, or
/// the file in which they are; none: that beside it
/// @throws ConfigError without arguments and for other hints, DataError for a file of arguments that cannot be read
XClipFile as_x_clip_file(RawClip raw, const std::string& path, const ClipFileHints& hints = {});

}  // namespace dalle2
