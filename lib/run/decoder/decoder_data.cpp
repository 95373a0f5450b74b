// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_data.h"

#include "run/device/device_copy.h"
#include "run/shards/shard_position.h"

namespace dalle2 {

LoaderOptions decoder_needs(const TrainDecoderConfig& config, const DecoderPlan& plan) {
  LoaderOptions needs;
  needs.need_image_embeds = !config.decoder.unconditional;
  needs.need_text_encodings = plan.text_conditioned();
  const UnetPlan& first = plan.stages.front();
  if (!config.decoder.unconditional) needs.image_embed_dim = first.unet.image_embed_dim;
  for (const UnetPlan& stage : plan.stages) {
    if (stage.unet.cond_on_text_encodings.value_or(false))
      needs.text_embed_dim = stage.unet.text_embed_dim;
  }
  needs.need_latents = config.data.latents_in_tar;
  if (needs.need_latents) needs.latent_side = first.map_side(first.image_size);
  return needs;
}

ShardData decoder_data(const TrainDecoderConfig& config,
                       const DecoderPlan& plan,
                       RankInfo rank,
                       const at::Device& device) {
  ShardData data(config.data, config.seed, decoder_needs(config, plan), rank, device);
  data.deal_into(data.slices_at_begin());
  return data;
}

ShardData decoder_data(const TrainDecoderConfig& config,
                       const DecoderPlan& plan,
                       const at::Device& device,
                       const Cursor& checkpoint) {
  ShardData data(config.data, config.seed, decoder_needs(config, plan), RankInfo{}, device);
  data.deal_into(slices_of(checkpoint).value_or(data.slices_at_begin()));
  return data;
}

DecoderInputs to_inputs(const Batch& batch, const at::Device& device) {
  return copied_to(
      device, DecoderInputs{batch.images, batch.image_embeds, batch.text_encodings, batch.latents});
}

}  // namespace dalle2
