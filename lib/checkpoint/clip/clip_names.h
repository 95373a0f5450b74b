// SPDX-License-Identifier: MIT
// Whose file of a CLIP it is, by the names of its tensors, and the same tensors under open_clip's names.
#pragma once

#include <string>

#include "checkpoint/state_dict.h"

namespace dalle2 {

enum class ClipNaming { kOpenClip, kHuggingFace };

struct NamedClip {
  StateDict tensors;                          ///< open_clip's names
  ClipNaming naming = ClipNaming::kOpenClip;  ///< of the file
};

/// Takes off "text.", which open_clip's CustomTextCLIP puts in front; drops what is no weight
/// (positions, masks, OpenAI's three numbers); joins the queries, keys and values of Hugging Face's
/// CLIPModel.
/// @param where precedes the text of errors @throws DataError naming a tensor that is missing
NamedClip open_clip_names(StateDict tensors, const std::string& where);

}  // namespace dalle2
