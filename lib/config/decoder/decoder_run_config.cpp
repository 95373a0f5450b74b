// SPDX-License-Identifier: MIT
#include "config/decoder/decoder_run_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

/// A config that says what a checkpoint's model is.
const ReadOptions kAsDescription = {.overrides = {},
                                    .strict = false,
                                    .check_available = false,
                                    .no_commands = true,
                                    .part = ConfigPart::model};

/// The sections of VAEs that only their checkpoints hold.
void fill_in_vaes(DecoderConfig& decoder, const ReadOptions& options, Faults& faults) {
  if (!decoder.vae || !options.config_of_checkpoint) return;
  for (size_t i = 0; i < decoder.vae->size(); ++i) {
    std::optional<LatentConfig>& vae = (*decoder.vae)[i];
    if (!vae || vae->model) continue;
    try {
      const std::string json = options.config_of_checkpoint(TrainVaeConfig::kKind, vae->checkpoint);
      vae->model = parse_vae_config(json, vae->checkpoint + ": config", kAsDescription).config.vae;
    } catch (const ConfigError& error) {
      faults.error(fmt::format("/decoder/vae/{}/checkpoint", i), error.what());
    }
  }
}

void fill_in_clip_score(TrainDecoderConfig& config, const ReadOptions& options, Faults& faults) {
  if (!config.evaluate.clip_score || faults.has_error_under("/evaluate")) return;
  ClipScoreConfig& score = *config.evaluate.clip_score;
  fill_in_clip(score.clip, "/evaluate/clip_score/clip", options, faults);
  if (config.decoder.clip) {
    score.own_sha256 = config.decoder.clip->sha256;
  } else if (!score.clip) {
    faults.error("/evaluate/clip_score/clip",
                 "must be given, as there is no decoder.clip: {\"model\": \"clip.pth\"}");
  }
}

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
  if (clip && image_url && (text_url || !text)) {
    faults.error(
        "/decoder/clip",
        fmt::format("Loaded clip, but also provided {}img_embeddings_url. This is redundant. "
                    "Remove the clip model or the embeddings",
                    text ? "text_embeddings_url and " : ""));
  }
  if (clip && in_tar) {
    faults.warn("/decoder/clip",
                "has no effect while training: data.embeddings_in_tar reads what it would make");
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
  const bool asked = std::ranges::any_of(scales, [](double s) { return s != 1; });
  if (asked && !taught) {
    faults.error("/train/cond_scale",
                 "must be 1: classifier-free guidance needs decoder.image_cond_drop_prob or "
                 "decoder.text_cond_drop_prob above 0");
  }
}

// Options of `train` with one value for each unet have as many as there are unets.
void check_lengths(const DecoderTrainConfig& train, size_t unets, Faults& faults) {
  const auto check_count = [&](size_t count, const char* key, const char* text) {
    if (count == unets) return;
    faults.error(fmt::format("/train/{}", key),
                 fmt::format("{} one entry for each unet ({}), got {}", text, unets, count));
  };
  const auto check = [&](const auto& value, const char* key) {
    if (!value.is_one()) check_count(value.size(), key, "must be one value or have");
  };
  check(train.lr, "lr");
  check(train.wd, "wd");
  check(train.warmup_steps, "warmup_steps");
  check(train.max_grad_norm, "max_grad_norm");
  check(train.cond_scale, "cond_scale");
  check(train.eps, "eps");
  check(train.cosine_decay_max_steps, "cosine_decay_max_steps");
  check(train.min_snr_gamma, "min_snr_gamma");
  if (!train.unet_training_mask) return;
  const std::vector<bool>& mask = *train.unet_training_mask;
  check_count(mask.size(), "unet_training_mask", "must have");
  if (std::ranges::find(mask, true) == mask.end()) {
    faults.error("/train/unet_training_mask", "must train at least one unet, all are false");
  }
}

/// Embedding sources, lengths of the per-unet arrays of `train`, and what one section asks of another.
/// Asks only sections without faults of their own.
void check_sections(const TrainDecoderConfig& config, const DecoderPlan& plan, Faults& faults) {
  const bool decoder = !faults.has_error_under("/decoder");
  const bool data = !faults.has_error_under("/data");
  const bool train = !faults.has_error_under("/train");
  if (decoder && data) check_embedding_sources(config, plan, faults);
  if (decoder && data) check_latents_in_tar(config, plan, faults);
  // Asked before lengths are: those are faults of the section too.
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

void check_loss(const UnetPlan& stage, size_t i, Faults& faults) {
  if (stage.loss.min_snr_gamma && stage.p2_loss_weight_gamma > 0) {
    faults.error(
        "/train/min_snr_gamma",
        fmt::format("excludes decoder.p2_loss_weight_gamma: both weigh the loss of unet {} by its "
                    "signal-to-noise ratio, and p2_loss_weight_gamma is {}; set one of them to "
                    "null or 0",
                    i + 1,
                    stage.p2_loss_weight_gamma));
  }
  check_dream(stage.loss.dream, stage.objective, network_name(i), faults);
}

/// Puts what `train` asks of the losses into the stages that are trained, and refuses what their
/// objectives and loss weights do not allow. `train` and `plan` have no faults of their own.
void plan_losses(const DecoderTrainConfig& train, DecoderPlan& plan, Faults& faults) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) continue;
    UnetPlan& stage = plan.stages[i];
    stage.loss = train.loss_plan(i);
    check_loss(stage, i, faults);
  }
}

void check_decoder(const ReadOptions& options, LoadedDecoderConfig& loaded, Faults& faults) {
  TrainDecoderConfig& config = loaded.config;
  Faults of_clip;  // a file that is missing hides no fault of the config
  if (!faults.has_error_under("/decoder/clip"))
    fill_in_clip(config.decoder.clip, "/decoder/clip", options, of_clip);
  if (!faults.has_error_under("/decoder")) fill_in_vaes(config.decoder, options, faults);
  fill_in_clip_score(config, options, faults);
  // The reference takes an empty text as none.
  auto& text_url = config.data.text_embeddings_url;
  if (text_url && text_url->empty()) text_url.reset();
  if (config.written_by) {
    config.decoder.written_by = parse_version(*config.written_by, "/written_by");
  }
  if (!faults.has_error_under("/decoder")) loaded.plan = plan_decoder(config.decoder, faults);
  if (const int64_t channels = config.decoder.channels; channels == 2 || channels > 4) {
    faults.error("/decoder/channels", fmt::format("must be 1, 3 or 4, got {}", channels));
  }
  config.data.apply_exif = config.data.turns_pictures();  // a resumed run keeps what it had
  check_sections(config, loaded.plan, faults);
  if (!faults.has_error_under("/decoder") && !faults.has_error_under("/train")) {
    plan_losses(config.train, loaded.plan, faults);
  }
  faults.add(of_clip);
}

}  // namespace

LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options) {
  return parse_config<LoadedDecoderConfig>(
      json, origin, options, [&](const Json&, LoadedDecoderConfig& loaded, Faults& faults) {
        check_decoder(options, loaded, faults);
      });
}

}  // namespace dalle2
