// SPDX-License-Identifier: MIT
#include "run/prior/prior_data.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "checkpoint/clip/clip_file.h"
#include "data/embeddings/embeddings.h"
#include "data/loader/drop_log.h"
#include "run/checkpoints/clip_weights.h"
#include "run/device/device.h"

namespace dalle2 {

void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name) {
  if (prior.image_embed_dim != clip.embed_dim()) {
    throw DataError(
        "{}: expected embeddings of {} values, as {} makes, got a prior of {}\n  Name the CLIP that "
        "the prior's embeddings were made with.",
        prior_name,
        clip.embed_dim(),
        clip_name,
        prior.image_embed_dim);
  }
  if (prior.condition_on_text_encodings && clip.text_width() != prior.image_embed_dim) {
    throw DataError("{}: is conditioned on text encodings of {} values, and those of {} have {}",
                    prior_name,
                    prior.image_embed_dim,
                    clip_name,
                    clip.text_width());
  }
}

std::shared_ptr<ClipEmbedder> open_prior_clip(const PriorConfig& prior) {
  auto clip = open_clip_of(prior.clip, "/prior/clip");
  if (clip) check_clip_widths(prior, "/prior", clip->clip(), clip->name());
  return clip;
}

PriorDataset prior_data(const TrainPriorConfig& config, const ClipEmbedder* clip) {
  std::optional<ClipPreprocessing> pictures;
  if (clip != nullptr) pictures = clip->clip().preprocessing();
  return {config.data, config.prior, config.seed, pictures};
}

namespace {

/// What `shards embed` wrote beside a folder of embeddings; empty without, or for none.
std::string clip_beside(const std::optional<std::string>& url) {
  const std::optional<std::string> beside = embed_manifest_beside(url.value_or(""));
  return beside ? clip_of_manifest(*beside) : "";
}

}  // namespace

std::string clip_identity(const TrainPriorConfig& config, const ClipEmbedder* clip) {
  return clip != nullptr ? clip_sha256(clip->clip()) : clip_beside(config.data.text_url);
}

void warn_of_several_clips(const TrainPriorConfig& config, const ClipEmbedder* clip) {
  const std::string of_images = clip_beside(config.data.image_url);
  if (of_images.empty()) return;
  const std::string of_texts = clip_identity(config, clip);
  if (of_texts.empty() || of_texts == of_images) return;
  log_warning(
      "config",
      "/data/image_url: the embeddings are of another CLIP than {}: its identity, a SHA-256, is {}, "
      "and that of the other {}\n  A prior learns how the two embeddings of one CLIP belong together. "
      "Make both with one CLIP.",
      clip != nullptr ? "/prior/clip" : "those of /data/text_url",
      short_clip_identity(of_images),
      short_clip_identity(of_texts));
}

void check_usable(const PriorDataset& data, bool has_clip) {
  constexpr int64_t kMostTried = 1 << 16, kMostAtOnce = 1 << 10;
  DropLog drops;
  int64_t row = 0, count = 1;
  for (auto batch = data.batch("train", /*epoch=*/0, row, count); batch;
       batch = data.batch("train", /*epoch=*/0, row, count)) {
    if (batch->size() > 0) return;
    drops.merge(std::move(batch->drops));
    row += count;
    if (row >= kMostTried || stop_requested() != 0) return;  // an epoch will tell
    count = std::min(2 * count, kMostAtOnce);
  }
  DropCounts by_reason, of_epoch;
  drops.report("train", by_reason, of_epoch);
  throw_nothing_usable(data, has_clip);
}

void throw_nothing_usable(const PriorDataset& data, bool has_clip) {
  throw DataError(
      "/data: none of the {} training rows can be used: {}",
      with_commas(data.rows("train")),
      has_clip
          ? "none has a caption in /data/meta_url and a finite embedding in /data/image_url, or a "
            "picture that can be read\n  Look at the warnings above."
          : "all hold NaN or infinity in /data/image_url, /data/text_url or "
            "/data/text_encodings_url\n  Make the embeddings again.");
}

TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior) {
  if (!prior.condition_on_text_encodings) return {.embeds = texts.embeds, .encodings = {}};
  const int64_t length = std::min(texts.encodings.size(1), prior.net.text_len());
  texts.encodings = texts.encodings.narrow(1, 0, length);
  return texts;
}

PriorInputs to_inputs(const PriorBatch& batch,
                      const at::Device& device,
                      const ClipEmbedder* clip,
                      const PriorConfig& prior) {
  PriorInputs inputs =
      copied_to(device, PriorInputs{batch.image_embeds, {batch.text_embeds, batch.text_encodings}});
  if (clip == nullptr) return inputs;
  if (!inputs.image_embeds.defined())
    inputs.image_embeds = clip->embed_images(batch.pictures.to(device));
  inputs.text = as_prior_takes(clip->embed_captions(batch.captions), prior);
  return inputs;
}

}  // namespace dalle2
