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
  if (clip->is_coca()) {
    if (!options.check_available) return;
    return faults.error(
        pointer + "/make",
        "a CoCa cannot be built from a config: its image encoder is an object of your Python "
        "program. Make its embeddings there, as .npy files, and give them to the run: "
        "/data/img_embeddings_url of a decoder, /data/image_url and /data/text_url of a prior");
  }
  if (clip->is_x_clip() && !clip->base_model_kwargs && options.check_available) {
    return faults.error(pointer + "/base_model_kwargs",
                        "required with \"make\": \"x-clip\", but missing: the arguments that the "
                        "CLIP was made with, as the weights do not say all of them");
  }
  if (clip->is_x_clip() && clip->model == ClipConfig{}.model && options.check_available) {
    return faults.error(pointer + "/model",
                        "required with \"make\": \"x-clip\", but missing: the file with the state "
                        "dict of the CLIP");
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
