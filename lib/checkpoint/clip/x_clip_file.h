// SPDX-License-Identifier: MIT
// Files of CLIPs of x-clip: the state dict of its class CLIP.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/clip/clip_by_arguments.h"

namespace dalle2 {

/// Without the tensors that only its training needs.
using XClipFile = ClipByArguments<XClipConfig>;

/// @param raw what was read from `path` @param config the arguments that the CLIP was made with; none:
/// those in the file beside it @throws as clip_arguments() and check_arguments()
XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config);

}  // namespace dalle2
