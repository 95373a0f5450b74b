// SPDX-License-Identifier: MIT
// Files of CoCas of coca-pytorch: the state dict of its class CoCa with an image encoder.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/clip/clip_by_arguments.h"

namespace dalle2 {

/// Its config has an image encoder.
using CocaFile = ClipByArguments<CocaConfig>;

/// The table of tokens lies in a CoCa under two names, of which a file may have one alone, as
/// safetensors' save_model() writes it; the result has both.
/// @param raw what was read from `path` @param config the arguments that the CoCa was made with; none:
/// those in the file beside it
/// @throws as clip_arguments() and check_arguments(); ConfigError for arguments without an image
/// encoder, DataError if the two tables differ
CocaFile as_coca_file(RawClip raw,
                      const std::string& path,
                      const std::optional<CocaConfig>& config);

}  // namespace dalle2
