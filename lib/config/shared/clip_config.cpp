// SPDX-License-Identifier: MIT
#include "config/shared/clip_config.h"

#include <fmt/format.h>

#include "base/error.h"

namespace dalle2 {
namespace {

/// What else a CLIP needs whose file does not say all of it. @return whether all is there
bool check_arguments(const ClipConfig& clip, const std::string& pointer, Faults& faults) {
  const auto require = [&](bool is_given, const std::string& key, const std::string& what) {
    if (is_given) return true;
    faults.error(pointer + key,
                 fmt::format("required with \"make\": \"{}\", but missing: {}", clip.make, what));
    return false;
  };
  if (!require(clip.base_model_kwargs.has_value(),
               "/base_model_kwargs",
               "the arguments that the CLIP was made with, as the weights do not say all of them"))
    return false;
  return require(
      clip.model != ClipConfig{}.model, "/model", "the file with the state dict of the CLIP");
}

}  // namespace

void fill_in_clip(std::optional<ClipConfig>& clip,
                  const std::string& pointer,
                  const ReadOptions& options,
                  Faults& faults) {
  if (!clip) return;
  if (clip->needs_arguments() && options.check_available &&
      !check_arguments(*clip, pointer, faults))
    return;
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
