// SPDX-License-Identifier: MIT
// What DecoderImpl::sample refuses before it begins.
#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/decoder/stage.h"

namespace dalle2 {
namespace {

constexpr std::array<const char*, 4> kSamplers = {"auto", "ddpm", "ddim", "dpmpp"};

void check_shape(const char* what, const at::Tensor& tensor, at::IntArrayRef expected) {
  if (tensor.sizes() == expected) return;
  throw DataError(
      "{}: expected shape {}, got {}", what, c10::str(expected), c10::str(tensor.sizes()));
}

// [B, C, any, any]
void check_image(const char* what, const at::Tensor& image, int64_t batch, int64_t channels) {
  if (image.dim() == 4 && image.size(0) == batch && image.size(1) == channels) return;
  throw DataError("{}: expected [{}, {}, height, width], got {}",
                  what,
                  batch,
                  channels,
                  c10::str(image.sizes()));
}

void check_inpainting(const DecoderSampleOptions& options, int64_t batch, int64_t channels) {
  if (options.inpaint_image.defined() != options.inpaint_mask.defined()) {
    throw ConfigError(
        "inpainting: expected both an image and a mask, got only the {}\n  Give the other one too, "
        "or neither.",
        options.inpaint_image.defined() ? "image" : "mask");
  }
  if (!options.inpaint_image.defined()) return;
  check_image("inpainting image", options.inpaint_image, batch, channels);
  const at::Tensor& image = options.inpaint_image;
  check_shape("inpainting mask", options.inpaint_mask, {batch, image.size(2), image.size(3)});
  if (options.inpaint_resample_times < 1) {
    throw ConfigError("inpainting: expected at least 1 pass for each step, got {}",
                      options.inpaint_resample_times);
  }
  if (options.sampler == "dpmpp") {
    throw ConfigError(
        "inpainting: the sampler dpmpp cannot repeat a step\n  Use ddpm or ddim with it.");
  }
}

// Steps of a sampler that takes fewer than all of the T training steps.
void check_steps(const DecoderSampleOptions& options, const UnetPlan& plan, int64_t unet_number) {
  const std::optional<int64_t> asked =
      options.sample_timesteps.at(static_cast<size_t>(unet_number - 1));
  const std::optional<int64_t> steps = asked ? asked : plan.sample_timesteps;
  if (!steps) return;
  // dpmpp spaces its steps over T - 1 different noise levels.
  const int64_t most = options.sampler == "dpmpp" ? plan.timesteps - 1 : plan.timesteps;
  if (*steps < 1 || *steps > most) {
    throw ConfigError(
        "sample timesteps of unet {}: expected 1 to {}, got {}", unet_number, most, *steps);
  }
  if (options.sampler == "ddpm" && asked && *steps < plan.timesteps) {
    throw ConfigError(
        "sample timesteps of unet {}: the sampler ddpm takes all {} training steps, got {}\n"
        "  Leave the number out, or use ddim or dpmpp.",
        unet_number,
        plan.timesteps,
        *steps);
  }
}

}  // namespace

void DecoderImpl::check_guidance(const DecoderSampleOptions& options) const {
  const DecoderConfig& config = plan_.config;
  if (!options.cond_scale.is_one() && options.cond_scale.size() != stages_.size()) {
    throw ConfigError("cond_scale: expected one value or one for each of the {} unets, got {}",
                      num_unets(),
                      options.cond_scale.size());
  }
  const auto& scales = options.cond_scale.values();
  const bool guided = std::any_of(scales.begin(), scales.end(), [](double s) { return s != 1; });
  if (guided && config.image_cond_drop_prob <= 0 && config.text_cond_drop_prob <= 0) {
    throw ConfigError(
        "cond_scale: the decoder was not trained with conditional dropout, so it cannot be guided "
        "(expected 1)\n  Train it with /decoder/image_cond_drop_prob or text_cond_drop_prob above "
        "0.");
  }
  if (!(options.cfg_rescale >= 0 && options.cfg_rescale <= 1)) {
    throw ConfigError("cfg_rescale: expected 0 to 1, got {}", options.cfg_rescale);
  }
}

int64_t DecoderImpl::check_sample_options(const DecoderSampleOptions& options) const {
  const int64_t stop = options.stop_at_unet.value_or(num_unets());
  if (options.start_at_unet < 1 || stop > num_unets() || options.start_at_unet > stop) {
    throw ConfigError("unets to sample: expected a first and a last of 1 to {}, got {} and {}",
                      num_unets(),
                      options.start_at_unet,
                      stop);
  }
  if (std::find(kSamplers.begin(), kSamplers.end(), options.sampler) == kSamplers.end()) {
    throw ConfigError("sampler: expected auto, ddpm, ddim or dpmpp, got \"{}\"", options.sampler);
  }
  check_guidance(options);
  if (!options.sample_timesteps.is_one() && options.sample_timesteps.size() != stages_.size()) {
    throw ConfigError(
        "sample timesteps: expected one value or one for each of the {} unets, got {}",
        num_unets(),
        options.sample_timesteps.size());
  }
  const bool first_stage = options.start_at_unet == 1;
  if (!first_stage && !options.image.defined()) {
    throw ConfigError(
        "unets to sample: an image is needed to start at unet {}\n  Give the output of unet {}, or "
        "start at unet 1.",
        options.start_at_unet,
        options.start_at_unet - 1);
  }
  check_conditions(
      first_stage && !plan_.config.unconditional, options.image_embeds, options.text_encodings);

  int64_t batch = options.batch_size;
  if (!first_stage) batch = options.image.size(0);
  if (options.image_embeds.defined()) batch = options.image_embeds.size(0);
  const int64_t channels = plan_.config.channels;
  if (!first_stage) check_image("image", options.image, batch, channels);
  if (options.text_encodings.defined() && options.text_encodings.size(0) != batch) {
    throw DataError("text encodings: expected one row for each of the {} samples, got {}",
                    batch,
                    options.text_encodings.size(0));
  }
  check_inpainting(options, batch, channels);

  const auto sampled = static_cast<size_t>(stop - options.start_at_unet + 1);
  if (!options.init_noise.empty() && options.init_noise.size() != sampled) {
    throw ConfigError("initial noise: expected one array for each of the {} sampled unets, got {}",
                      sampled,
                      options.init_noise.size());
  }
  for (size_t i = 0; i < sampled; ++i) check_stage_options(options, i, batch);
  return batch;
}

void DecoderImpl::check_stage_options(const DecoderSampleOptions& options,
                                      size_t order,
                                      int64_t batch) const {
  const int64_t unet_number = options.start_at_unet + static_cast<int64_t>(order);
  const Stage& s = stage(unet_number);
  if (!s.unet) {
    throw ConfigError(
        "unets to sample: unet {} has no weights here, it was left out of the training\n  Stop "
        "before it, or take a checkpoint that holds it.",
        unet_number);
  }
  check_steps(options, s.plan, unet_number);
  if (!options.init_noise.empty()) {
    const int64_t side = s.plan.map_side(s.plan.image_size);
    check_shape(
        "initial noise", options.init_noise[order], {batch, s.plan.unet.channels, side, side});
  }
  if (s.plan.latent && options.inpaint_image.defined()) {
    throw ConfigError(
        "inpainting: unet {} works in the latent space of a VAE, where a picture and a mask of "
        "pixels mean nothing\n  Complete pictures with a decoder that works on pixels.",
        unet_number);
  }
  if (s.schedule->has_zero_terminal_snr() && s.plan.objective == Objective::eps &&
      make_sampler(unet_number, options)->time_pairs().front().time == s.plan.timesteps - 1) {
    throw ConfigError(
        "sample timesteps of unet {}: the first step holds nothing of the image, and a network "
        "that predicts noise cannot restore it\n"
        "  Use ddim with fewer than {} steps.",
        unet_number,
        s.plan.timesteps - 1);
  }
}

}  // namespace dalle2
