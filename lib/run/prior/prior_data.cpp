// SPDX-License-Identifier: MIT
#include "run/prior/prior_data.h"

#include <torch/types.h>

#include <algorithm>

#include "base/error.h"
#include "run/device/device.h"

namespace dalle2 {

void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipImpl& clip,
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
  std::optional<int64_t> clip_side;
  if (clip != nullptr) clip_side = clip->clip().image_size();
  return {config.data, config.prior, clip_side};
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
  const ClipTexts texts = clip->embed_captions(batch.captions);
  inputs.text.embeds = texts.embed;
  if (prior.condition_on_text_encodings) {
    const int64_t length = std::min(texts.encodings.size(1), prior.net.text_len());
    inputs.text.encodings = texts.encodings.narrow(1, 0, length);
  }
  return inputs;
}

}  // namespace dalle2
