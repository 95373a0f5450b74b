// SPDX-License-Identifier: MIT
#include "config/clip/clip_run_config.h"

#include <fmt/format.h>

#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

constexpr const char* kClipPage = R"(
## Files that train a CLIP

A file with the root key `clip` trains a CLIP (Radford et al. 2021) on pictures and their captions: the model in the
keys of open_clip's model configs, the shards in the keys of a decoder's. Rules between sections:

| if | then |
|---|---|
| always | `clip.text_cfg.width` is divisible by `clip.text_cfg.heads`, and `clip.vision_cfg.width` by `clip.vision_cfg.head_width` |
| always | `clip.vision_cfg.image_size` is divisible by its `patch_size`, for a ResNet by 32; the transforms make pictures of that side |
| `clip.tokenizer.train` | `clip.text_cfg.vocab_size` is absent or the same, and `clip.tokenizer.path` is absent |
| always | no embeddings and no latents in `data` |

)";

void check_towers(const ClipModelConfig& clip, Faults& faults) {
  const ClipVisionConfig& vision = clip.vision_cfg;
  const auto check = [&](bool good, const char* key, const std::string& text) {
    if (!good) faults.error(std::string("/clip/") + key, text);
  };
  check(clip.text_cfg.width % clip.text_cfg.heads == 0,
        "text_cfg/width",
        fmt::format("must be divisible by text_cfg.heads ({}), got {}",
                    clip.text_cfg.heads,
                    clip.text_cfg.width));
  const bool has_stages = !vision.is_resnet() || vision.layers.size() == 4;
  check(has_stages,
        "vision_cfg/layers",
        fmt::format("must be one number, or four for the stages of a ResNet, got {}",
                    vision.layers.size()));
  check(vision.width % vision.head_width == 0,
        "vision_cfg/width",
        fmt::format("must be divisible by vision_cfg.head_width ({}), got {}",
                    vision.head_width,
                    vision.width));
  check(vision.image_size % vision.reduction() == 0,
        "vision_cfg/image_size",
        fmt::format("must be divisible by {} ({}), got {}",
                    vision.is_resnet() ? "32" : "vision_cfg.patch_size",
                    vision.is_resnet() ? "a ResNet halves it five times"
                                       : std::to_string(vision.patch_size),
                    vision.image_size));
}

/// A vocabulary that is trained decides how many tokens there are.
void set_vocabulary(const Json& root, ClipModelConfig& clip, Faults& faults) {
  const std::optional<int64_t> tokens = clip.tokenizer.train;
  if (!tokens) return;
  if (clip.tokenizer.path) {
    faults.error("/clip/tokenizer/path",
                 "has no place beside clip.tokenizer.train: a vocabulary is read or trained");
  }
  const Json::json_pointer given("/clip/text_cfg/vocab_size");
  if (root.contains(given) && clip.text_cfg.vocab_size != *tokens) {
    faults.error("/clip/text_cfg/vocab_size",
                 fmt::format("must be clip.tokenizer.train ({}) or absent, got {}",
                             *tokens,
                             clip.text_cfg.vocab_size));
  }
  clip.text_cfg.vocab_size = *tokens;
}

void check_sources(const ShardDataConfig& data, Faults& faults) {
  const auto refuse = [&](bool given, const char* key) {
    if (!given) return;
    faults.error(std::string("/data/") + key,
                 "has no place here: a CLIP is trained on pictures and captions alone");
  };
  refuse(data.img_embeddings_url.has_value(), "img_embeddings_url");
  refuse(data.text_embeddings_url.has_value(), "text_embeddings_url");
  refuse(data.embeddings_in_tar, "embeddings_in_tar");
  refuse(data.latents_in_tar, "latents_in_tar");
}

void check_clip(const Json& root, LoadedClipConfig& loaded, Faults& faults) {
  TrainClipConfig& config = loaded.config;
  if (!faults.has_error_under("/clip")) {
    set_vocabulary(root, config.clip, faults);
    check_towers(config.clip, faults);
  }
  if (!faults.has_error_under("/data")) check_sources(config.data, faults);
  const bool counts = !faults.has_error_under("/data") && !faults.has_error_under("/train");
  if (counts && config.data.batch_size * config.train.grad_accum_every == 1) {
    faults.warn(
        "/data/batch_size",
        "is 1: a pair has no others to be told from unless several processes train together");
  }
  check_train_rules(config, faults);
}

}  // namespace

LoadedClipConfig parse_clip_config(const std::string& json,
                                   const std::string& origin,
                                   const ReadOptions& options) {
  return parse_config<LoadedClipConfig>(json, origin, options, check_clip);
}

ConfigKind clip_kind() {
  return kind_row<TrainClipConfig, parse_clip_config>(kClipPage, "The sections of a CLIP's file");
}

}  // namespace dalle2
