// SPDX-License-Identifier: MIT
#include "diffusion/decoder/step_noise.h"

#include <torch/torch.h>

#include "model/random.h"
#include "model/unet/unet.h"

namespace dalle2 {
namespace {

std::vector<CropOffset> draw_crops(int64_t batch, int64_t free_pixels, at::Generator generator) {
  const at::Tensor offsets = at::randint(0, free_pixels + 1, {2, batch}, generator, at::kLong);
  std::vector<CropOffset> crops(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    crops[static_cast<size_t>(i)] = {offsets[0][i].item<int64_t>(), offsets[1][i].item<int64_t>()};
  }
  return crops;
}

// Blur for the batch; with noise, a level for each sample and noise of `sizes` [B, C, S, S].
LowresDraws draw_lowres(const LowresConditionerImpl& lowres,
                        at::IntArrayRef sizes,
                        const at::Generator& host,
                        const at::Generator& generator,
                        const at::Device& device) {
  LowresDraws draws = lowres.draw_blur(host);
  if (!lowres.options().use_noise) return draws;
  const at::TensorOptions options(generator.device());
  draws.noise_level =
      at::randint(
          0, LowresConditionerImpl::kNoiseLevels, {sizes[0]}, generator, options.dtype(at::kLong))
          .to(device);
  draws.noise = at::randn(sizes, generator, options.dtype(at::kFloat)).to(device);
  return draws;
}

}  // namespace

at::Generator host_generator(const at::Generator& generator) {
  if (generator.device().is_cpu()) return generator;
  at::Generator device = generator;
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // spreads neighbouring positions apart
  return cpu_generator(device.current_seed() ^ ((device.get_offset() + 1) * kGoldenRatio));
}

bool draw_self_condition(const at::Generator& host) {
  return at::rand({1}, host, at::kDouble).item<double>() < 0.5;
}

DecoderStepNoise draw_step_noise(const UnetPlan& stage,
                                 const DecoderConfig& decoder,
                                 const LowresConditionerImpl* lowres,
                                 int64_t batch,
                                 at::Generator generator,
                                 const at::Device& device) {
  const at::Device home = generator.device();
  const auto floats = at::TensorOptions(home).dtype(at::kFloat);
  at::Generator host = host_generator(generator);
  const int64_t side = stage.random_crop_size.value_or(stage.image_size);

  DecoderStepNoise draws;
  draws.dropout_seed = generator.current_seed();
  draws.times =
      draw_times(stage.loss.timestep_sampling, batch, stage.timesteps, generator).to(device);
  const int64_t map_side = stage.map_side(side);
  draws.noise =
      at::randn({batch, stage.unet.channels, map_side, map_side}, generator, floats).to(device);
  draws.image_keep_mask =
      prob_mask(batch, 1 - decoder.image_cond_drop_prob, home, generator).to(device);
  draws.text_keep_mask =
      prob_mask(batch, 1 - decoder.text_cond_drop_prob, home, generator).to(device);
  if (stage.unet.self_cond) draws.self_condition = draw_self_condition(host);
  if (stage.random_crop_size) {
    draws.crop_offsets = draw_crops(batch, stage.image_size - side, host);
  }
  if (lowres != nullptr) {
    const int64_t whole = stage.image_size;
    draws.lowres =
        draw_lowres(*lowres, {batch, decoder.channels, whole, whole}, host, generator, device);
  }
  // Drawn last, so that it changes no other draw.
  draws.augmentation = draw_augmentation(stage.loss, draws.noise.sizes(), generator, device);
  return draws;
}

}  // namespace dalle2
