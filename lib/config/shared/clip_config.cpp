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
  const auto refuse = [&](const char* key, const std::string& text) {
    if (options.check_available) faults.error(pointer + key, text);
  };
  if (clip->needs_arguments() && options.check_available) {
    const std::string missing =
        fmt::format("required with \"make\": \"{}\", but missing: ", clip->make);
    if (!clip->base_model_kwargs)
      return refuse("/base_model_kwargs",
                    missing +
                        "the arguments that the CLIP was made with, as the weights do not "
                        "say all of them");
    if (clip->model == ClipConfig{}.model)
      return refuse("/model", missing + "the file with the state dict of the CLIP");
  }
  if (!options.sha256_of_clip) return;
  try {
    const std::string found = options.sha256_of_clip(clip->model);
    if (!clip->sha256) clip->sha256 = found;
    if (*clip->sha256 == found) return;
    refuse("/sha256",
           fmt::format("expected the sha256 of {}, {}, got {}: it is another file than it was",
                       clip->model,
                       found,
                       *clip->sha256));
  } catch (const Error& error) {
    refuse("/model", error.what());
  }
}

}  // namespace dalle2
