// SPDX-License-Identifier: MIT
// Parts of `train` that change the loss: which times are drawn, what noise is added, what a sample
// weighs. One declaration for every diffusion model.
#pragma once

#include <optional>

#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

struct DreamConfig {
  static constexpr const char* kDoc =
      "DREAM (Zhou et al. 2024): the network first runs without gradients, and then trains on "
      "samples that contain its own error, as it meets them when sampling. Only for networks that "
      "predict the noise. A step takes about a third longer.";

  bool enabled = false;
  double detail_preservation = 1.0;

  void fields(auto& f) {
    D2_FIELD(enabled, "Turn DREAM on.");
    D2_FIELD(detail_preservation,
             "Exponent p of the weight sqrt(1 - alphas_cumprod)^p of the error: 0 takes the whole "
             "error; larger values take less where the sample is nearly clean.",
             at_least(0));
  }
};

struct TimestepSamplingConfig {
  static constexpr const char* kDoc =
      "Distribution of the timesteps in training (Esser et al. 2024, section 3.1). A number u in "
      "[0, 1] is drawn and becomes the timestep T - 1 - floor(u T), where T is `timesteps`: u near "
      "0 gives the noisiest ones, as in diffusers.";

  TimestepScheme scheme = TimestepScheme::uniform;
  std::optional<double> logit_mean = 0.0;
  std::optional<double> logit_std = 1.0;
  std::optional<double> mode_scale = 1.29;

  void fields(auto& f) {
    D2_FIELD(scheme,
             "`uniform`: u is uniform. `logit_normal`: u = sigmoid(z) with a normal z. `mode`: "
             "u = 1 - v - mode_scale * (cos^2(pi v / 2) - 1 + v), where v is uniform in [0, 1].");
    D2_FIELD(logit_mean,
             "Mean of z in `logit_normal`. Below 0 prefers noisy timesteps, above 0 clean ones.");
    D2_FIELD(logit_std, "Standard deviation of z in `logit_normal`.", at_least(0));
    D2_FIELD(
        mode_scale,
        "Strength of `mode`: above 0 prefers the middle timesteps, below 0 the ends; from -1 to "
        "1.75 the map from v to u is monotonic.");
    const auto needs = [&](const char* key, bool given, TimestepScheme of, const char* good) {
      f.check(scheme != of || given,
              key,
              std::string("must be a number with scheme \"") +
                  enum_names<TimestepScheme>[static_cast<size_t>(of)] +
                  "\", got null; the default is " + good);
    };
    needs("logit_mean", logit_mean.has_value(), TimestepScheme::logit_normal, "0");
    needs("logit_std", logit_std.has_value(), TimestepScheme::logit_normal, "1");
    needs("mode_scale", mode_scale.has_value(), TimestepScheme::mode, "1.29");
  }
};

/// What `train` asks of the loss of one model.
struct LossPlan {
  std::optional<double> min_snr_gamma;
  LossWeighting weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double noise_offset = 0.0;        ///< standard deviation of the noise that a whole plane shares
  double input_perturbation = 0.0;  ///< standard deviation of the noise the target does not know
};

/// The options of a diffusion model's loss.
template <template <class> class Per>
struct LossConfig {
  Per<std::optional<double>> min_snr_gamma = std::nullopt;
  LossWeighting loss_weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double input_perturbation = 0.0;

  /// What they ask of network `index` of the run.
  LossPlan loss_plan(size_t index = 0) const {
    LossPlan plan;
    plan.min_snr_gamma = value_for(min_snr_gamma, index);
    plan.weighting = loss_weighting;
    plan.timestep_sampling = timestep_sampling;
    plan.dream = dream;
    plan.input_perturbation = input_perturbation;
    return plan;
  }

  void fields(auto& f) {
    D2_FIELD(
        min_snr_gamma,
        "Min-SNR weighting of the loss (Hang et al. 2023): min(snr, gamma), divided by snr if the "
        "network predicts the noise, by snr + 1 for v, by 1 for the clean sample. 5 is "
        "recommended; null is off.",
        above(0));
    D2_FIELD(
        loss_weighting,
        "Weight of the loss by the noise level sigma = b / (a + b), where a and b are the factors "
        "of the clean sample and of the noise. `sigma_sqrt` is sigma^-2, with sigma at least "
        "0.001; `cosmap` is 2 / (pi (1 - 2 sigma + 2 sigma^2)).");
    D2_FIELD(timestep_sampling, "Distribution of the timesteps in training.");
    D2_FIELD(dream, "Training on the network's own errors.");
    D2_FIELD(input_perturbation,
             "Strength of extra noise that the target does not contain (Ning et al. 2023); 0.1 is "
             "recommended.",
             at_least(0));
  }
};

}  // namespace dalle2
