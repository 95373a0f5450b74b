// SPDX-License-Identifier: MIT
// What the file of a CLIP holds, whosever it is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/untrusted_json.h"
#include "checkpoint/state_dict.h"

namespace dalle2 {

/// The entry of a file that holds the merges of a vocabulary of its own, as text.
inline constexpr const char* kClipMergesKey = "clip_merges";
/// The entry of a prior's file that says of which CLIP its embeddings were: clip_sha256().
inline constexpr const char* kClipIdentityKey = "clip_weights_sha256";
/// What a trainer's files hold besides weights and config: each file that is made of one keeps them.
inline constexpr const char* kCompanionKeys[] = {kClipMergesKey, kClipIdentityKey};
/// The CLIP that a prior's file names; empty if it names none.
std::string clip_identity_in(const Cursor& root);
/// The beginning of one, for messages.
std::string short_clip_identity(const std::string& identity);
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

/// @throws DataError unless it is JSON @param where precedes the text of the error
Json json_in_file(const std::string& text, const std::string& where);
/// The JSON in a file beside `path`, if there is one. @return its path and what is in it
std::optional<std::pair<std::string, Json>> json_beside(const std::string& path, const char* name);

}  // namespace dalle2
