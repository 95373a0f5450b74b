// SPDX-License-Identifier: MIT
#include "config/clip/clip_run_config.h"

#include <fmt/format.h>

#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

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

/// A ResNet's last map has to have several places, or the batch norm of a single picture has one value.
void check_resnet_size(const ClipVisionConfig& vision, Faults& faults) {
  constexpr int64_t kLeast = 2 * ClipVisionConfig::kResNetMult;
  if (!vision.is_resnet() || vision.image_size >= kLeast) return;
  faults.error(
      "/clip/vision_cfg/image_size",
      fmt::format("must be {} or more to train a ResNet; got {}", kLeast, vision.image_size));
}

/// A ResNet takes an update in one pass: its batch norms see what a pass has.
void check_resnet_passes(const TrainClipConfig& config, Faults& faults) {
  if (config.train.mixed_precision == MixedPrecision::fp16) {
    faults.error(
        "/train/mixed_precision",
        "must be \"no\" or \"bf16\" for a ResNet: a pass of fp16 that is skipped has already "
        "moved the statistics of its batch norms");
  }
  const auto refuse = [&](bool wrong, const char* key, const std::string& wanted, int64_t given) {
    if (!wrong) return;
    faults.error(
        std::string("/train/") + key,
        fmt::format("must be {} for a ResNet, got {}: each pass would have other statistics "
                    "in its batch norms; train a vision transformer (a single number of "
                    "layers), or fewer pictures an update",
                    wanted,
                    given));
  };
  const int64_t batch = config.data.batch_size, batches = config.train.grad_accum_every;
  const int64_t chunk = config.train.max_batch_size.value_or(batch);
  refuse(batches > 1, "grad_accum_every", "1", batches);
  refuse(chunk < batch,
         "max_batch_size",
         fmt::format("absent or at least data.batch_size ({})", batch),
         chunk);
}

void check_clip(const Json& root, LoadedClipConfig& loaded, Faults& faults) {
  TrainClipConfig& config = loaded.config;
  config.data.apply_exif = config.data.turns_pictures();  // a resumed run keeps what it had
  if (!faults.has_error_under("/clip")) check_resnet_size(config.clip.vision_cfg, faults);
  if (!faults.has_error_under("/clip")) set_vocabulary(root, config.clip, faults);
  if (!faults.has_error_under("/data")) check_sources(config.data, faults);
  if (!faults.has_error_under("/clip") && config.clip.vision_cfg.is_resnet())
    check_resnet_passes(config, faults);
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

}  // namespace dalle2
