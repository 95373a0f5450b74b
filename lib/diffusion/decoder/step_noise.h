// SPDX-License-Identifier: MIT
// Everything random of one training step of a stage.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "config/decoder/decoder_config.h"
#include "diffusion/decoder/lowres_conditioner.h"
#include "diffusion/loss.h"

namespace dalle2 {

/// Upper left corner of a sample's crop, pixels.
struct CropOffset {
  int64_t x = 0;
  int64_t y = 0;
};

/// Given by a test, or made by draw_step_noise.
struct DecoderStepNoise {
  at::Tensor times;  ///< [B] int64 in [0, T)
  at::Tensor noise;  ///< [B, D, s, s] standard normal, of what the unet denoises, or of its crop
  at::Tensor image_keep_mask;            ///< [B] bool: false puts the null embedding
  at::Tensor text_keep_mask;             ///< [B] bool
  bool self_condition = false;           ///< one decision for the batch
  std::vector<CropOffset> crop_offsets;  ///< one a sample, empty without random crops
  LowresDraws lowres;                    ///< upper stages
  NoiseAugmentationDraws augmentation;
  uint64_t dropout_seed = 0;  ///< of adapters; nothing is drawn for it

  void tensors(const auto& f) {
    f(times);
    f(noise);
    f(image_keep_mask);
    f(text_keep_mask);
    f(lowres.noise);
    f(lowres.noise_level);
    f(augmentation.offset);
    f(augmentation.perturbation);
  }
  void cut_rest(int64_t begin, int64_t length) {
    if (crop_offsets.empty()) return;
    const auto first = crop_offsets.begin() + begin;
    crop_offsets = std::vector<CropOffset>(first, first + length);
  }
};

/// A CPU generator for decisions that the host has to know. For a CUDA generator it is derived from
/// its seed and position, because asking the device would stall the step.
at::Generator host_generator(const at::Generator& generator);

/// Whether a step is conditioned on the network's own first estimate: half of them are (Chen et al.
/// 2022).
/// @param host a generator on the CPU
bool draw_self_condition(const at::Generator& host);

/// Draws the noise of a step. @param lowres null for the first stage
/// @param generator on the CPU or on `device`; tensors are drawn where it lives and moved to
/// `device`
DecoderStepNoise draw_step_noise(const UnetPlan& stage,
                                 const DecoderConfig& decoder,
                                 const LowresConditionerImpl* lowres,
                                 int64_t batch,
                                 at::Generator generator,
                                 const at::Device& device);

}  // namespace dalle2
