// SPDX-License-Identifier: MIT
#include "model/unet/unet_shape.h"

#include "config/decoder/plan_rules.h"
#include "config/reading/faults.h"

namespace dalle2 {
namespace {

// A plan has passed these checks already, but a unet may be built without one.
void check(const UnetConfig& config) {
  Faults faults;
  check_unet_shape(config, "", faults);
  if (config.cond_on_image_embeds && !config.image_embed_dim) {
    faults.error("/image_embed_dim", "is needed by a unet conditioned on image embeddings");
  }
  if (config.cond_on_text_encodings.value_or(false) && !config.text_embed_dim) {
    faults.error("/text_embed_dim", "is needed with cond_on_text_encodings");
  }
  faults.throw_if_any("unet");
}

}  // namespace

UnetShape unet_shape(const UnetConfig& config) {
  check(config);
  UnetShape shape;
  int64_t in = config.dim;
  for (size_t i = 0; i < config.dim_mults.size(); ++i) {
    UnetLevel level;
    level.in = in;
    level.out = config.dim * config.dim_mults[i];
    level.width = config.memory_efficient ? level.out : level.in;
    level.groups = config.resnet_groups.at(i);
    level.num_blocks = config.num_resnet_blocks.at(i);
    level.self_attn = config.self_attn.at(i);
    level.first = i == 0;
    level.last = i + 1 == config.dim_mults.size();
    shape.levels.push_back(level);
    in = level.out;
  }
  const int64_t images = 1 + (config.lowres_cond ? 1 : 0) + (config.self_cond ? 1 : 0);
  shape.channels_in = config.channels * images;
  shape.channels_out = config.channels_out.value_or(config.channels);
  shape.cond_dim = config.cond_dim.value_or(config.dim);
  shape.time_dim = 4 * config.dim;
  shape.mid_dim = in;
  shape.halvings = halvings(config);
  return shape;
}

}  // namespace dalle2
