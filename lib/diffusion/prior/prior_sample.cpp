// SPDX-License-Identifier: MIT
// Sampling of a diffusion prior.
#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "diffusion/prior/prior.h"
#include "model/frozen_weight.h"
#include "model/pass_scopes.h"

namespace dalle2 {
void DiffusionPriorImpl::check_sample_options(const PriorSampleOptions& options) const {
  const PriorConfig& config = plan_.config;
  if (!options.text.embeds.defined() || options.text.embeds.dim() != 2) {
    throw DataError("text embeddings: expected [batch, {}], got {}",
                    config.image_embed_dim,
                    options.text.embeds.defined() ? c10::str(options.text.embeds.sizes()) : "none");
  }
  if (options.cond_scale != 1 && (config.text_drop_prob() == 0 || config.image_drop_prob() == 0)) {
    throw ConfigError(
        "cond_scale: expected 1, got {}: this prior never saw its conditions dropped\n  Train it "
        "with /prior/cond_drop_prob above 0, or sample with a cond_scale of 1.",
        options.cond_scale);
  }
  const int64_t steps = options.timesteps.value_or(config.timesteps);
  if (steps > config.timesteps || steps < std::min<int64_t>(2, config.timesteps)) {
    throw ConfigError(
        "timesteps: expected 2 to {} (/prior/timesteps), got {}", config.timesteps, steps);
  }
  if (options.num_samples_per_text < 1) {
    throw ConfigError("num_samples_per_text: expected at least 1, got {}",
                      options.num_samples_per_text);
  }
}

at::Tensor DiffusionPriorImpl::clean_estimate(const at::Tensor& x,
                                              const at::Tensor& times,
                                              const PriorConditions& conditions,
                                              double cond_scale) {
  const at::Tensor answer = net_->forward_with_cond_scale(x, times, conditions, cond_scale);
  const at::Tensor x_start = target_.x_start(*schedule_, x, times, answer.to(x.scalar_type()));
  if (!plan_.config.predict_x_start) return static_threshold(x_start);
  return plan_.config.sampling_clamp_l2norm ? l2_clamp(x_start) : x_start;
}

at::Tensor DiffusionPriorImpl::p_sample_loop(const PriorSampleOptions& options) {
  check_sample_options(options);
  const torch::NoGradGuard no_grad;
  const EvalScope eval(*this);
  const WeightsAtRest weights_at_rest;
  return inferred([&] { return walk(options); });
}

at::Tensor DiffusionPriorImpl::walk(const PriorSampleOptions& options) {
  const PriorConfig& config = plan_.config;
  PriorConditions given = conditions(options.text);
  const NoiseSource noise = noise_source(options.noise, options.generator, device());
  const int64_t steps = options.timesteps.value_or(config.timesteps);
  const auto sampler = steps < config.timesteps ? make_prior_ddim_sampler(schedule_, steps)
                                                : make_ddpm_sampler(schedule_, std::nullopt);
  const int64_t batch = options.text.embeds.size(0);
  at::Tensor x = noise({batch, config.image_embed_dim});
  if (config.init_image_embed_l2norm) x = l2_clamp(x);
  given.encoded_text = net_->encode_text(given, options.cond_scale != 1);
  const std::vector<TimePair> pairs = sampler->time_pairs();
  for (size_t step = 0; step < pairs.size(); ++step) {
    const TimePair& pair = pairs[step];
    if (options.on_step) options.on_step(step, pairs.size());
    const at::Tensor times = at::full({batch}, pair.time, x.options().dtype(at::kLong));
    const at::Tensor x_start = clean_estimate(x, times, given, options.cond_scale);
    if (config.net.self_cond) given.self_cond = x_start;
    x = sampler->step(x, times, pair, {x_start, {}}, noise);
  }
  if (config.predict_x_start && config.sampling_final_clamp_l2norm) x = l2_clamp(x);
  return x / config.scale();
}

at::Tensor DiffusionPriorImpl::sample(const PriorSampleOptions& options) {
  check_sample_options(options);
  const int64_t candidates = options.num_samples_per_text;
  PriorSampleOptions all = options;
  if (!all.timesteps) all.timesteps = plan_.config.sample_timesteps;
  all.text.embeds = options.text.embeds.repeat_interleave(candidates, 0);
  if (options.text.encodings.defined()) {
    all.text.encodings = options.text.encodings.repeat_interleave(candidates, 0);
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor embeds = p_sample_loop(all).unflatten(0, {-1, candidates});  // [B, r, D]
  const at::Tensor texts = options.text.embeds.to(embeds.device()).unsqueeze(1);
  const at::Tensor similarity = (l2_normalize(texts) * l2_normalize(embeds)).sum(-1);  // [B, r]
  const at::Tensor best = similarity.argmax(1).view({-1, 1, 1});
  return embeds.gather(1, best.expand({-1, 1, embeds.size(2)})).squeeze(1);
}

}  // namespace dalle2
