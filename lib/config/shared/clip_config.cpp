// SPDX-License-Identifier: MIT
#include "config/shared/clip_config.h"

#include <fmt/format.h>

#include "base/error.h"

namespace dalle2 {

void fill_in_clip(std::optional<ClipConfig>& clip,
                  const std::string& pointer,
                  const ReadOptions& options,
                  Faults& faults) {
  if (!clip) return;
  if (clip->is_of_reference_alone()) {
    if (!options.check_available) return;
    return faults.error(
        pointer + "/make",
        fmt::format(
            "\"{}\" is not available yet: give a CLIP of a run with the root key `clip`, of "
            "OpenAI or of open_clip, by its file as \"model\"",
            clip->make));
  }
  if (!options.sha256_of_clip) return;
  std::string found;
  try {
    found = options.sha256_of_clip(clip->model);
  } catch (const Error& error) {
    if (options.check_available) faults.error(pointer + "/model", error.what());
    return;
  }
  if (!clip->sha256) clip->sha256 = found;
  if (*clip->sha256 == found) return;
  if (!options.check_available) return;
  faults.error(pointer + "/sha256",
               fmt::format("expected the sha256 of {}, {}, got {}: it is another file than it was",
                           clip->model,
                           found,
                           *clip->sha256));
}

}  // namespace dalle2
