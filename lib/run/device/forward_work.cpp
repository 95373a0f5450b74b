// SPDX-License-Identifier: MIT
#include "run/device/forward_work.h"

namespace dalle2 {
namespace {

/// Two convolutions a block, on the way down and on the way up.
double of_blocks(int64_t blocks, int64_t width, int64_t side) {
  const auto values = static_cast<double>(width * side);
  return 2 * 2 * 9 * static_cast<double>(blocks) * values * values;
}

/// Four matrices of attention, and two that widen to four times the width and back.
double of_layers(int64_t layers, int64_t width, int64_t tokens) {
  return 12 * static_cast<double>(layers * tokens) * static_cast<double>(width * width);
}

}  // namespace

double sample_work(const LoadedDecoderConfig& loaded) {
  const auto& mask = loaded.config.train.unet_training_mask;
  double most = 0;
  for (size_t i = 0; i < loaded.plan.stages.size(); ++i) {
    if (mask && !mask->at(i)) continue;
    const UnetPlan& stage = loaded.plan.stages[i];
    const UnetConfig& unet = stage.unet;
    int64_t side = stage.map_side(stage.random_crop_size.value_or(stage.image_size));
    double work = 0;
    for (size_t level = 0; level < unet.dim_mults.size(); ++level) {
      if (level > 0 || unet.memory_efficient) side /= 2;
      work += of_blocks(unet.num_resnet_blocks.at(level), unet.dim * unet.dim_mults[level], side);
    }
    most = std::max(most, work);
  }
  return most;
}

double sample_work(const LoadedPriorConfig& loaded) {
  const PriorNetworkConfig& net = loaded.config.prior.net;
  const int64_t text = loaded.config.prior.condition_on_text_encodings ? net.text_len() : 0;
  return of_layers(net.depth, net.dim, text + net.num_text_embeds + net.num_image_embeds + 2);
}

double sample_work(const LoadedVaeConfig& loaded) {
  const VaeConfig& vae = loaded.config.vae;
  int64_t side = loaded.config.data.image_size;
  const int64_t grid = side / vae.reduction();
  if (vae.is_vit()) return 2 * of_layers(vae.layers, vae.dim, grid * grid);
  double work = 0;
  for (int64_t layer = 0; layer < vae.layers; ++layer) {
    const auto& mults = vae.encdec_layer_mults;
    side /= 2;
    work += of_blocks(
        1, vae.dim * (mults ? mults->at(static_cast<size_t>(layer)) : int64_t{1} << layer), side);
  }
  return work;
}

double sample_work(const LoadedClipConfig& loaded) {
  const ClipVisionConfig& vision = loaded.config.clip.vision_cfg;
  const ClipTextConfig& text = loaded.config.clip.text_cfg;
  const int64_t layers = vision.layers.at(0);
  // The four stages of a ResNet take about the same.
  return of_layers(text.layers, text.width, text.context_length) +
         (vision.is_resnet() ? 2 * of_blocks(layers, vision.width, vision.image_size / 4)
                             : of_layers(layers, vision.width, vision.grid() * vision.grid()));
}

}  // namespace dalle2
