// SPDX-License-Identifier: MIT
#include "config/shared/train_rules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dalle2 {
namespace {

bool shapes_ema_pytorch(const AveragesConfig& given, const AveragesConfig& defaults) {
  return given.ema_beta != defaults.ema_beta ||
         given.ema_update_after_step != defaults.ema_update_after_step ||
         given.ema_update_every != defaults.ema_update_every ||
         given.ema_inv_gamma != defaults.ema_inv_gamma || given.ema_power != defaults.ema_power ||
         given.ema_min_value != defaults.ema_min_value;
}

// Each kind of average has options of its own; those of the other would do nothing.
void check_ema(const AveragesConfig& given, const AveragesConfig& defaults, Faults& faults) {
  const bool diffusers = given.ema.kind == EmaKind::diffusers;
  const bool shaped = shapes_ema_pytorch(given, defaults);
  if (!given.use_ema) {
    if (given.ema != EmaConfig{} || shaped || given.update_model_with_ema_every) {
      faults.warn("/train/use_ema",
                  "is false: the keys train.ema, train.ema_* and train.update_model_with_ema_every "
                  "have no effect");
    }
    return;
  }
  if (!diffusers && given.ema != EmaConfig{}) {
    faults.error("/train/ema/kind",
                 "must be \"diffusers\" for the other keys of ema to have an effect, got "
                 "\"ema_pytorch\", which has train.ema_beta, train.ema_update_after_step, ...");
  }
  if (diffusers && given.update_model_with_ema_every) {
    faults.error("/train/update_model_with_ema_every",
                 fmt::format("must be null with ema.kind \"diffusers\", got {}; only "
                             "\"ema_pytorch\" copies the average back",
                             *given.update_model_with_ema_every));
  }
  if (diffusers && shaped) {
    faults.warn("/train/ema/kind",
                "the keys train.ema_* have no effect with \"diffusers\": train.ema.decay, "
                "train.ema.update_after_step, ... take their place");
  }
}

void check_post_hoc_ema(const PostHocEmaConfig& averages, Faults& faults) {
  if (averages.sigmas[0] == averages.sigmas[1]) {
    faults.error("/train/post_hoc_ema/sigmas",
                 fmt::format("must be two different widths, got {} twice", averages.sigmas[0]));
  }
  if (!averages.save_every_n_steps && averages != PostHocEmaConfig{}) {
    faults.error("/train/post_hoc_ema/save_every_n_steps",
                 "must be given for the widths to have an effect, got null");
  }
}

void check_adapters(const AdaptersConfig& given, const LoraConfig& defaults, Faults& faults) {
  const LoraConfig& lora = given.lora;
  const bool shapes_lora = lora.alpha || lora.targets != defaults.targets ||
                           lora.init != defaults.init || lora.dropout != defaults.dropout ||
                           lora.train_bias;
  if (lora.rank == 0 && shapes_lora) {
    faults.warn("/train/lora/rank",
                "is 0: the other keys of lora have no effect, and the whole network is trained");
  }
  if (lora.rank > 0 || given.frozen_dtype == FrozenDtype::fp32) return;
  faults.error("/train/frozen_dtype",
               "must be \"fp32\" without adapters, because then nothing is frozen; set "
               "train.lora.rank to train adapters");
}

void check_non_finite(const NonFiniteConfig& given, Faults& faults) {
  const NonFiniteConfig defaults;
  if (given.action == NonFiniteAction::stop &&
      (given.lr_factor != defaults.lr_factor || given.max_roll_backs != defaults.max_roll_backs)) {
    faults.warn("/train/non_finite/action",
                "lr_factor and max_roll_backs have an effect with \"roll_back\" only, got "
                "\"stop\"");
  }
}

// Nichol & Dhariwal 2021, eq. 17, with s = 0.008 and beta at most 0.999.
std::vector<double> cosine(int64_t timesteps) {
  const auto alpha_cumprod = [&](int64_t i) {
    const double phase = (static_cast<double>(i) / static_cast<double>(timesteps) + 0.008) / 1.008;
    return std::pow(std::cos(phase * std::numbers::pi * 0.5), 2);
  };
  std::vector<double> betas;
  for (int64_t i = 0; i < timesteps; ++i) {
    betas.push_back(std::clamp(1 - alpha_cumprod(i + 1) / alpha_cumprod(i), 0.0, 0.999));
  }
  return betas;
}

// `count` values from `low` to `high`; a single one is `low`, as in torch.linspace.
std::vector<double> linspace(double low, double high, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    values.push_back(low + share * (high - low));
  }
  return values;
}

}  // namespace

void check_shared_options(const SharedTrainConfig& train,
                          const SharedTrainConfig& defaults,
                          Faults& faults) {
  check_ema(train, defaults, faults);
  check_post_hoc_ema(train.post_hoc_ema, faults);
  check_adapters(train, defaults.lora, faults);
  if (train.amp && train.mixed_precision == MixedPrecision::no) {
    faults.warn("/train/amp", "has no effect: train.mixed_precision is \"no\"");
  }
  check_non_finite(train.non_finite, faults);
}

void check_loss_options(const DreamConfig& dream, Faults& faults) {
  if (!dream.enabled && dream.detail_preservation != DreamConfig{}.detail_preservation) {
    faults.warn("/train/dream/enabled", "is false: the other keys of dream have no effect");
  }
}

void check_savers(const SharedTrainConfig& train, const TrackerConfig& tracker, Faults& faults) {
  if (train.lora.rank > 0) return;
  for (size_t i = 0; i < tracker.save.size(); ++i) {
    const SaveType type =
        std::visit([](const SaveTargets& targets) { return targets.save_type; }, tracker.save[i]);
    if (type != SaveType::lora) continue;
    faults.error("/tracker/save",
                 fmt::format("saver {} has save_type \"lora\", but this run trains no adapters: "
                             "set train.lora.rank, or choose \"checkpoint\" or \"model\"",
                             i + 1));
  }
}

void check_dream(const DreamConfig& dream,
                 Objective objective,
                 const NetworkName& network,
                 Faults& faults) {
  if (!dream.enabled || objective == Objective::eps) return;
  const bool is_v = objective == Objective::v;
  faults.error("/train/dream/enabled",
               fmt::format("{}: {} predicts {}; set predict_v and predict_x_start of the {} to "
                           "false for it, or dream.enabled to false",
                           is_v ? "DREAM has not been implemented for v-prediction"
                                : "Unknown prediction type sample",
                           network.name,
                           is_v ? "v" : "the clean " + network.sample,
                           network.section));
}

std::vector<double> beta_schedule_values(BetaSchedule schedule, int64_t timesteps) {
  // The end points of Ho et al. 2020, scaled so that a shorter chain ends in as much noise.
  const double scale = 1000.0 / static_cast<double>(timesteps);
  const double low = scale * 1e-4;
  const double high = scale * 0.02;
  std::vector<double> betas;
  switch (schedule) {
    case BetaSchedule::cosine:
      return cosine(timesteps);
    case BetaSchedule::linear:
      return linspace(low, high, timesteps);
    case BetaSchedule::quadratic:
      betas = linspace(std::sqrt(low), std::sqrt(high), timesteps);
      for (double& beta : betas) beta *= beta;
      return betas;
    case BetaSchedule::sigmoid:
      betas = linspace(-6, 6, timesteps);
      for (double& beta : betas) beta = (high - low) / (1 + std::exp(-beta)) + low;
      return betas;
    case BetaSchedule::jsd:
      for (int64_t i = timesteps; i >= 1; --i) {
        betas.push_back(static_cast<double>(1.0F / static_cast<float>(i)));
      }
      return betas;
  }
  return betas;
}

bool check_betas(BetaSchedule schedule,
                 int64_t timesteps,
                 const NetworkName& network,
                 Faults& faults) {
  const std::vector<double> betas = beta_schedule_values(schedule, timesteps);
  const auto bad = std::ranges::find_if(betas, [](double b) { return b >= 1; });
  if (bad == betas.end()) return true;
  faults.error(
      fmt::format("/{}/timesteps", network.section),
      fmt::format("with {} timesteps the {} schedule of {} has beta {:.4g} at step {}; a beta must "
                  "stay below 1, or the loss is NaN: use at least 21 timesteps, or the cosine "
                  "schedule",
                  timesteps,
                  enum_names<BetaSchedule>[static_cast<size_t>(schedule)],
                  network.name,
                  *bad,
                  bad - betas.begin()));
  return false;
}

}  // namespace dalle2
