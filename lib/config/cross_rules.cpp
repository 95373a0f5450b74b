// SPDX-License-Identifier: MIT
#include "config/cross_rules.h"

#include <fmt/format.h>

#include <algorithm>

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

// A run without adapters writes no file of them.
void check_savers(const TrainDecoderConfig& config, Faults& faults) {
  if (config.train.lora.rank > 0) return;
  for (size_t i = 0; i < config.tracker.save.size(); ++i) {
    const SaveType type = std::visit([](const SaveTargets& targets) { return targets.save_type; },
                                     config.tracker.save[i]);
    if (type != SaveType::lora) continue;
    faults.error("/tracker/save",
                 fmt::format("saver {} has save_type \"lora\", but this run trains no adapters: "
                             "set train.lora.rank, or choose \"checkpoint\" or \"model\"",
                             i + 1));
  }
}

class TrainRules {
 public:
  TrainRules(const TrainDecoderConfig& config, Faults& faults)
      : train_(config.train), count_(config.decoder.unets.size()), faults_(faults) {}

  void check() {
    check_length(train_.lr, "lr");
    check_length(train_.wd, "wd");
    if (train_.warmup_steps) check_length(*train_.warmup_steps, "warmup_steps");
    check_length(train_.max_grad_norm, "max_grad_norm");
    check_length(train_.cond_scale, "cond_scale");
    check_length(train_.eps, "eps");
    if (train_.cosine_decay_max_steps) {
      check_length(*train_.cosine_decay_max_steps, "cosine_decay_max_steps");
    }
    if (train_.min_snr_gamma) check_length(*train_.min_snr_gamma, "min_snr_gamma");
    check_ema();
    check_post_hoc_ema();
    check_lora();
    check_loss_options();
    check_precision();
    if (!train_.unet_training_mask) return;
    const std::vector<bool>& mask = *train_.unet_training_mask;
    check_count(mask.size(), "unet_training_mask", "must have");
    if (std::find(mask.begin(), mask.end(), true) == mask.end()) {
      faults_.error("/train/unet_training_mask", "must train at least one unet, all are false");
    }
  }

 private:
  void check_lora() {
    const LoraConfig& lora = train_.lora;
    const LoraConfig defaults;
    const bool shapes_lora = lora.alpha || lora.targets != defaults.targets ||
                             lora.init != defaults.init || lora.dropout != defaults.dropout ||
                             lora.train_bias;
    if (lora.rank == 0 && shapes_lora) {
      faults_.warn("/train/lora/rank",
                   "is 0: the other keys of lora have no effect, and the whole network is trained");
    }
    if (train_.lora.rank > 0 || train_.frozen_dtype == FrozenDtype::fp32) return;
    faults_.error("/train/frozen_dtype",
                  "must be \"fp32\" without adapters, for then nothing is frozen; set "
                  "train.lora.rank to train adapters");
  }

  /// Each kind of average has options of its own; those of the other would do nothing.
  void check_ema() {
    const bool diffusers = train_.ema.kind == EmaKind::diffusers;
    if (!train_.use_ema) {
      if (train_.ema != EmaConfig{} || shapes_ema_pytorch() || train_.update_model_with_ema_every) {
        faults_.warn("/train/use_ema",
                     "is false: the keys train.ema, train.ema_* and "
                     "train.update_model_with_ema_every have no effect");
      }
      return;
    }
    if (!diffusers && train_.ema != EmaConfig{}) {
      faults_.error("/train/ema/kind",
                    "must be \"diffusers\" for the other keys of ema to have an effect, got "
                    "\"ema_pytorch\", which has train.ema_beta, train.ema_update_after_step, ...");
    }
    if (diffusers && train_.update_model_with_ema_every) {
      faults_.error("/train/update_model_with_ema_every",
                    "must be null with ema.kind \"diffusers\", got " +
                        std::to_string(*train_.update_model_with_ema_every) +
                        "; only \"ema_pytorch\" copies the average back");
    }
    if (diffusers && shapes_ema_pytorch()) {
      faults_.warn("/train/ema/kind",
                   "the keys train.ema_* have no effect with \"diffusers\": train.ema.decay, "
                   "train.ema.update_after_step, ... take their place");
    }
  }
  void check_post_hoc_ema() {
    const PostHocEmaConfig& averages = train_.post_hoc_ema;
    if (averages.sigmas[0] == averages.sigmas[1]) {
      faults_.error("/train/post_hoc_ema/sigmas",
                    fmt::format("must be two different widths, got {} twice", averages.sigmas[0]));
    }
    if (!averages.save_every_n_steps && averages != PostHocEmaConfig{}) {
      faults_.error("/train/post_hoc_ema/save_every_n_steps",
                    "must be given for the widths to have an effect, got null");
    }
  }
  void check_loss_options() {
    if (!train_.dream.enabled &&
        train_.dream.detail_preservation != DreamConfig{}.detail_preservation) {
      faults_.warn("/train/dream/enabled", "is false: the other keys of dream have no effect");
    }
  }
  void check_precision() {
    if (train_.amp && train_.mixed_precision == MixedPrecision::no) {
      faults_.warn("/train/amp", "has no effect: train.mixed_precision is \"no\"");
    }
    const NonFiniteConfig defaults;
    const NonFiniteConfig& given = train_.non_finite;
    if (given.action == NonFiniteAction::stop &&
        (given.lr_factor != defaults.lr_factor ||
         given.max_roll_backs != defaults.max_roll_backs)) {
      faults_.warn("/train/non_finite/action",
                   "lr_factor and max_roll_backs have an effect with \"roll_back\" only, got "
                   "\"stop\"");
    }
  }
  bool shapes_ema_pytorch() const {
    const DecoderTrainConfig defaults;
    return train_.ema_beta != defaults.ema_beta ||
           train_.ema_update_after_step != defaults.ema_update_after_step ||
           train_.ema_update_every != defaults.ema_update_every ||
           train_.ema_inv_gamma != defaults.ema_inv_gamma ||
           train_.ema_power != defaults.ema_power || train_.ema_min_value != defaults.ema_min_value;
  }

  template <class T>
  void check_length(const OneOrMany<T>& value, const char* key) {
    if (!value.is_one()) {
      check_count(value.size(), key, "must be one value or have");
    }
  }
  void check_count(size_t count, const char* key, const char* text) {
    if (count == count_) return;
    faults_.error(fmt::format("/train/{}", key),
                  fmt::format("{} one entry for each unet ({}), got {}", text, count_, count));
  }

  const DecoderTrainConfig& train_;
  size_t count_;
  Faults& faults_;
};

}  // namespace

void check_sections(const TrainDecoderConfig& config, const DecoderPlan& plan, Faults& faults) {
  const bool decoder = !faults.has_error_under("/decoder");
  const bool data = !faults.has_error_under("/data");
  const bool train = !faults.has_error_under("/train");
  if (decoder && data) check_embedding_sources(config, plan, faults);
  // Lengths need only the number of unets, which a fault elsewhere in the decoder leaves alone.
  if (train && !config.decoder.unets.empty()) TrainRules(config, faults).check();
  if (decoder && train) check_guidance(config, faults);
  if (train && !faults.has_error_under("/tracker")) check_savers(config, faults);
  if (data && train && config.data.resample_train && !config.train.epoch_samples) {
    faults.warn(
        "/train/epoch_samples",
        "resample_train draws without end, so the first epoch never ends: set epoch_samples");
  }
}

}  // namespace dalle2
