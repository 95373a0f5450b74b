// SPDX-License-Identifier: MIT
#include "config/decoder/cross_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

void check_embedding_sources(const TrainDecoderConfig& config,
                             const DecoderPlan& plan,
                             Faults& faults) {
  const bool text = plan.text_conditioned();
  const bool clip = config.decoder.clip.has_value();
  const bool image_url = config.data.img_embeddings_url.has_value();
  const bool text_url = config.data.text_embeddings_url.has_value();
  const bool in_tar = config.data.embeddings_in_tar;
  if (text && !clip && !text_url && !in_tar) {
    faults.error("/data/text_embeddings_url",
                 "If text conditioning, either clip or text_embeddings_url must be provided (or "
                 "set embeddings_in_tar to true)");
  }
  if (clip && text && text_url && image_url) {
    faults.error(
        "/decoder/clip",
        "Loaded clip, but also provided text_embeddings_url and img_embeddings_url. This is "
        "redundant. Remove the clip model or the text embeddings");
  }
  if (clip && !text && image_url) {
    faults.error("/decoder/clip",
                 "Loaded clip, but also provided img_embeddings_url. This is redundant. Remove the "
                 "clip model or the embeddings");
  }
  if (text_url && !text) {
    faults.error("/data/text_embeddings_url",
                 "Text embeddings are being loaded, but text embeddings are not being conditioned "
                 "on. Remove text_embeddings_url, or set cond_on_text_encodings for a unet");
  }
  if (config.decoder.unconditional) {
    if (image_url) {
      faults.warn("/data/img_embeddings_url", "has no effect: decoder.unconditional is true");
    }
  } else if (!clip && !image_url && !in_tar) {
    faults.error("/data/img_embeddings_url",
                 "No image embeddings source specified: give img_embeddings_url, set "
                 "embeddings_in_tar to true, or set decoder.unconditional to true");
  }
}

// Latents were made once, of pictures as the transforms leave them.
void check_latents_in_tar(const TrainDecoderConfig& config,
                          const DecoderPlan& plan,
                          Faults& faults) {
  if (!config.data.latents_in_tar) return;
  if (plan.stages.empty() || !plan.stages.front().latent) {
    faults.error(
        "/data/latents_in_tar",
        "needs a VAE before the first unet: give the one that made them as decoder.vae[0]");
  }
  for (const TransformConfig& transform : config.data.preprocessing) {
    if (!transform.is_random()) continue;
    const char* name = enum_names<TransformKind>[static_cast<size_t>(transform.kind)];
    faults.error(fmt::format("/data/preprocessing/{}", name),
                 "cannot be used with data.latents_in_tar: the latents are of pictures without it");
  }
}

// Guidance compares with what the unet makes of no condition, which only dropout teaches it.
void check_guidance(const TrainDecoderConfig& config, Faults& faults) {
  const bool taught =
      config.decoder.image_cond_drop_prob > 0 || config.decoder.text_cond_drop_prob > 0;
  const std::vector<double>& scales = config.train.cond_scale.values();
  const bool asked = std::any_of(scales.begin(), scales.end(), [](double s) { return s != 1; });
  if (asked && !taught) {
    faults.error("/train/cond_scale",
                 "must be 1: classifier-free guidance needs decoder.image_cond_drop_prob or "
                 "decoder.text_cond_drop_prob above 0");
  }
}

// Options of `train` with one value for each unet have as many as there are unets.
class Lengths {
 public:
  Lengths(size_t unets, Faults& faults) : unets_(unets), faults_(faults) {}

  template <class T>
  void check(const OneOrMany<T>& value, const char* key) {
    if (!value.is_one()) check_count(value.size(), key, "must be one value or have");
  }
  void check_count(size_t count, const char* key, const char* text) {
    if (count == unets_) return;
    faults_.error(fmt::format("/train/{}", key),
                  fmt::format("{} one entry for each unet ({}), got {}", text, unets_, count));
  }

 private:
  size_t unets_;
  Faults& faults_;
};

void check_lengths(const DecoderTrainConfig& train, size_t unets, Faults& faults) {
  Lengths lengths(unets, faults);
  lengths.check(train.lr, "lr");
  lengths.check(train.wd, "wd");
  lengths.check(train.warmup_steps, "warmup_steps");
  lengths.check(train.max_grad_norm, "max_grad_norm");
  lengths.check(train.cond_scale, "cond_scale");
  lengths.check(train.eps, "eps");
  lengths.check(train.cosine_decay_max_steps, "cosine_decay_max_steps");
  lengths.check(train.min_snr_gamma, "min_snr_gamma");
  if (!train.unet_training_mask) return;
  const std::vector<bool>& mask = *train.unet_training_mask;
  lengths.check_count(mask.size(), "unet_training_mask", "must have");
  if (std::find(mask.begin(), mask.end(), true) == mask.end()) {
    faults.error("/train/unet_training_mask", "must train at least one unet, all are false");
  }
}

}  // namespace

void check_sections(const TrainDecoderConfig& config, const DecoderPlan& plan, Faults& faults) {
  const bool decoder = !faults.has_error_under("/decoder");
  const bool data = !faults.has_error_under("/data");
  const bool train = !faults.has_error_under("/train");
  if (decoder && data) check_embedding_sources(config, plan, faults);
  if (decoder && data) check_latents_in_tar(config, plan, faults);
  // Asked before lengths are: those are faults of the section, too.
  check_train_rules(config, faults);
  // Lengths need only the number of unets, which a fault elsewhere in the decoder leaves alone.
  if (train && !config.decoder.unets.empty()) {
    check_lengths(config.train, config.decoder.unets.size(), faults);
  }
  if (decoder && train) check_guidance(config, faults);
  if (data && train && config.data.resample_train && !config.train.epoch_samples) {
    faults.warn(
        "/train/epoch_samples",
        "resample_train draws without end, so the first epoch never ends: set epoch_samples");
  }
}

}  // namespace dalle2
