// SPDX-License-Identifier: MIT
#include "diffusion/prior/prior.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "model/frozen_weight.h"
#include "model/pass_scopes.h"
#include "model/random.h"
#include "model/unet/unet.h"

namespace dalle2 {
namespace {

void check_training_inputs(const PriorInputs& inputs, int64_t width) {
  const at::Tensor& images = inputs.image_embeds;
  if (!images.defined() || images.dim() != 2 || images.size(1) != width || images.size(0) == 0) {
    throw DataError(
        "image embeddings: expected [batch, {}], got {}\n  Set /prior/image_embed_dim and "
        "/prior/net/dim to the width of the embeddings.",
        width,
        images.defined() ? c10::str(images.sizes()) : "none");
  }
}

}  // namespace

DiffusionPriorImpl::DiffusionPriorImpl(const PriorPlan& plan) : plan_(plan) {
  const PriorConfig& config = plan_.config;
  NoiseScheduleOptions options;
  options.kind = config.beta_schedule;
  options.timesteps = config.timesteps;
  schedule_ = register_module("noise_scheduler", NoiseSchedule(options));
  net_ = register_module("net", std::make_shared<PriorNetworkImpl>(config.net));
}

at::Tensor DiffusionPriorImpl::l2_clamp(const at::Tensor& embeds) const {
  return l2_normalize(embeds) * plan_.config.scale();
}

PriorConditions DiffusionPriorImpl::conditions(const TextEmbedding& text) const {
  PriorConditions conditions;
  conditions.text_embed = text.embeds;
  if (!plan_.config.condition_on_text_encodings) return conditions;
  if (!text.encodings.defined()) {
    throw DataError(
        "text encodings: expected [batch, length, {}], got none\n  Give the prior text encodings, "
        "or set /prior/condition_on_text_encodings to false.",
        plan_.config.image_embed_dim);
  }
  conditions.text_encodings = text.encodings;
  return conditions;
}

PriorStepNoise DiffusionPriorImpl::draw(int64_t batch, at::Generator generator) const {
  const PriorConfig& config = plan_.config;
  const at::Device home = generator.device();
  at::Generator host = host_generator(generator);
  PriorStepNoise draws;
  draws.dropout.seed = generator.current_seed();
  draws.times =
      draw_times(plan_.loss.timestep_sampling, batch, config.timesteps, generator).to(device());
  draws.noise =
      at::randn(
          {batch, config.image_embed_dim}, generator, at::TensorOptions(home).dtype(at::kFloat))
          .to(device());
  draws.text_keep_mask =
      prob_mask(batch, 1 - config.text_drop_prob(), home, generator).to(device());
  draws.image_keep_mask =
      prob_mask(batch, 1 - config.image_drop_prob(), home, generator).to(device());
  if (config.net.self_cond) draws.self_condition = draw_self_condition(host);
  // Drawn last, so that it changes no other draw.
  draws.augmentation = draw_augmentation(plan_.loss, draws.noise.sizes(), generator, device());
  return draws;
}

at::Tensor DiffusionPriorImpl::forward(const PriorInputs& inputs, at::Generator generator) {
  check_training_inputs(inputs, plan_.config.image_embed_dim);
  return loss(inputs, draw(inputs.image_embeds.size(0), std::move(generator)));
}

at::Tensor DiffusionPriorImpl::loss(const PriorInputs& inputs, const PriorStepNoise& draws) {
  const PriorConfig& config = plan_.config;
  check_training_inputs(inputs, config.image_embed_dim);
  PriorConditions given = conditions(inputs.text);
  const at::Tensor x_start = inputs.image_embeds * config.scale();
  const at::Tensor& t = draws.times;
  const AugmentedNoise noise = augmented_noise(plan_.loss, draws.noise, draws.augmentation);
  const at::Tensor noised = schedule_->q_sample(x_start, t, noise.input);

  if (config.net.self_cond && draws.self_condition) {
    const NoGradPass no_grad;  // nothing is dropped in this pass; its answer is shown as it is
    given.self_cond = net_->forward(noised, t, given, draws.dropout).to(x_start.scalar_type());
  }
  given.text_keep_mask = draws.text_keep_mask;
  given.image_keep_mask = draws.image_keep_mask;
  // Under autocast the network answers in half precision; the losses are computed in fp32.
  const auto answer = [&](const at::Tensor& x) {
    return net_->forward(x, t, given, draws.dropout).to(x_start.scalar_type());
  };
  const auto [x_t, target] =
      dreamed(plan_.loss.dream,
              *schedule_,
              {noised, schedule_->target(config.objective(), x_start, t, noise.target)},
              t,
              noise.target,
              answer);
  at::Tensor prediction = answer(x_t);
  if (config.predict_x_start && config.training_clamp_l2norm) prediction = l2_clamp(prediction);
  const at::Tensor losses = pixel_loss(config.loss_type, prediction, target);
  return weighed(plan_.loss, /*p2_gamma=*/0, config.objective(), *schedule_, losses, t).mean();
}

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
    throw ConfigError("{}: expected 2 to {} (/prior/timesteps), got {}",
                      options.steps_name,
                      config.timesteps,
                      steps);
  }
  if (options.num_samples_per_text < 1) {
    throw ConfigError("num_samples_per_text: expected at least 1, got {}",
                      options.num_samples_per_text);
  }
}

Denoised DiffusionPriorImpl::clean_estimate(const at::Tensor& x,
                                            const at::Tensor& times,
                                            const PriorConditions& conditions,
                                            double cond_scale) {
  const at::Tensor answer =
      net_->forward_with_cond_scale(x, times, conditions, cond_scale).to(x.scalar_type());
  const Objective objective = plan_.config.objective();
  const at::Tensor x_start = schedule_->x_start_of(objective, x, times, answer);
  Denoised denoised{x_start, {}, {}};
  denoised.noise = ddim_noise(plan_.layout, *schedule_, objective, x, times, answer, x_start);
  if (!plan_.config.predict_x_start)
    denoised.x_start = x_start.clamp(-1, 1);
  else if (plan_.config.sampling_clamp_l2norm)
    denoised.x_start = l2_clamp(x_start);
  return denoised;
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
  const NoiseSource noise = noise_source(options.noise, {}, options.generator, device());
  const int64_t steps = options.timesteps.value_or(config.timesteps);
  const DdimWalk few{
      .steps = steps, .eta = 1, .previous_levels = true, .end = plan_.layout.to_zero ? 0 : -1};
  const auto sampler = steps < config.timesteps ? make_ddim_sampler(schedule_, few)
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
    const Denoised denoised = clean_estimate(x, times, given, options.cond_scale);
    if (config.net.self_cond) given.self_cond = denoised.x_start;
    x = sampler->step(x, times, pair, denoised, noise);
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
  if (options.text.encodings.defined())
    all.text.encodings = options.text.encodings.repeat_interleave(candidates, 0);
  const torch::NoGradGuard no_grad;
  const at::Tensor embeds = p_sample_loop(all).unflatten(0, {-1, candidates});  // [B, r, D]
  const at::Tensor texts = options.text.embeds.to(embeds.device()).unsqueeze(1);
  const at::Tensor similarity = (l2_normalize(texts) * l2_normalize(embeds)).sum(-1);  // [B, r]
  const at::Tensor best = similarity.argmax(1).view({-1, 1, 1});
  return embeds.gather(1, best.expand({-1, 1, embeds.size(2)})).squeeze(1);
}

}  // namespace dalle2
