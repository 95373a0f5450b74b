// SPDX-License-Identifier: MIT
#include "config/decoder/decoder_run_config.h"

#include "base/error.h"
#include "config/decoder/cross_rules.h"
#include "config/decoder/plan_rules.h"
#include "config/reading/kind_row.h"
#include "config/reading/parse_config.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

constexpr const char* kDecoderRules = R"(
## Rules between the sections

| when | then |
|---|---|
| a unet has `cond_on_text_encodings` | give `data.text_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` |
| no unet has it | `data.text_embeddings_url` must be absent |
| not `decoder.unconditional` | give `data.img_embeddings_url`, `data.embeddings_in_tar` or `decoder.clip` |
| `decoder.clip`, with text | give at most one of the two embedding urls |
| `decoder.clip`, without text | `data.img_embeddings_url` must be absent |
| `decoder.clip` | not `decoder.unconditional` |
| a value of `train` is a list | it has one entry for each unet |
| `train.cond_scale` is not 1 | a `cond_drop_prob` of the decoder is above 0 |
| `train.min_snr_gamma` of a unet | its `decoder.p2_loss_weight_gamma` is 0 |
| `train.dream.enabled` | every trained unet predicts the noise |
| `data.resample_train` | `train.epoch_samples` should bound the epoch |

These hold for every kind of run:

| when | then |
|---|---|
| `train.use_ema` is false | no other key of the averages has an effect |
| `train.ema.kind` is `ema_pytorch` | the other keys of `train.ema` keep their defaults |
| `train.ema.kind` is `diffusers` | `train.update_model_with_ema_every` is null |
| a width of `train.post_hoc_ema` is given | `train.post_hoc_ema.save_every_n_steps` is given, too |
| `train.lora.rank` is 0 | `train.frozen_dtype` is `fp32`, and no saver has the `save_type` `lora` |
| a run goes on from a checkpoint | its config gives weights and data the same meaning, or `train.allow_changed_config` is true |

## What is derived for each unet

- **Sizes.** `image_sizes` is sorted and stripped of doubles; the lowest belongs to the first unet.
  Each size (and crop size) must be divisible by 2 for each halving: one less than there are
  `dim_mults`, as many with `memory_efficient`.
- **Wiring.** The first unet gets the image embedding (unless `unconditional`), the others the low
  resolution image of the one before. Text goes to the unets with `cond_on_text_encodings`.
- **Schedules.** Every beta must stay below 1: 21 `timesteps` are enough for `linear`, `quadratic`
  and `sigmoid`. `jsd` ends at beta = 1, which leaves nothing of the image in the last step. It is
  allowed where that does no harm: without `learned_variance`, and either with `predict_v` or
  `predict_x_start` or with `sample_timesteps` below `timesteps - 1`; DDIM must not start at the
  last step. `zero_terminal_snr` ends there too; it always needs `predict_v` or `predict_x_start`.
- **Widths.** `init_dim` equals `dim`, and `dim_mults` starts with 1 unless `memory_efficient`: the
  last block of the network has no other shape. `resnet_groups` divides every width.
)";

/// A config that says what a checkpoint's model is.
const ReadOptions kAsDescription = {
    .overrides = {}, .strict = false, .check_available = false, .no_commands = true};

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

void check_decoder(const ReadOptions& options, LoadedDecoderConfig& loaded, Faults& faults) {
  TrainDecoderConfig& config = loaded.config;
  if (!faults.has_error_under("/decoder")) fill_in_vaes(config.decoder, options, faults);
  // The reference takes an empty text as none.
  auto& text_url = config.data.text_embeddings_url;
  if (text_url && text_url->empty()) text_url.reset();
  if (!faults.has_error_under("/decoder")) loaded.plan = plan_decoder(config.decoder, faults);
  check_sections(config, loaded.plan, faults);
  if (!faults.has_error_under("/decoder") && !faults.has_error_under("/train")) {
    plan_losses(config.train, loaded.plan, faults);
  }
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

LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options) {
  return parse_decoder_config(read_config_file(path), path, options);
}

ConfigKind decoder_kind() {
  return kind_row<TrainDecoderConfig, parse_decoder_config>("", "The sections", kDecoderRules);
}

}  // namespace dalle2
