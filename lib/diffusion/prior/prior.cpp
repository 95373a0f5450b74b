// SPDX-License-Identifier: MIT
#include "diffusion/prior/prior.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "diffusion/decoder/step_noise.h"
#include "model/pass_scopes.h"
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
  D2_CHECK(plan_.loss.noise_offset == 0, "a noise offset is for images");
  NoiseScheduleOptions options;
  options.kind = config.beta_schedule;
  options.timesteps = config.timesteps;
  schedule_ = register_module("noise_scheduler", NoiseSchedule(options));
  net_ = register_module("net", std::make_shared<PriorNetworkImpl>(config.net));
  target_.objective = config.objective();
  weight_.emplace(plan_.loss, /*p2_gamma=*/0.0, config.objective(), schedule_);
  density_.emplace(plan_.loss.timestep_sampling);
  dream_.emplace(plan_.loss.dream, config.objective());
  augmentation_.perturbation = plan_.loss.input_perturbation;
}

std::shared_ptr<PriorNetworkImpl> DiffusionPriorImpl::swap_net(
    std::shared_ptr<PriorNetworkImpl> net) {
  replace_module("net", net);
  return std::exchange(net_, std::move(net));
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
  draws.times = density_->draw(batch, config.timesteps, generator).to(device());
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
  draws.augmentation = augmentation_.draw(draws.noise.sizes(), std::move(generator));
  at::Tensor& perturbation = draws.augmentation.perturbation;
  if (perturbation.defined()) perturbation = perturbation.to(device());
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
  const at::Tensor noised =
      schedule_->q_sample(x_start, t, augmentation_.input_noise(draws.noise, draws.augmentation));

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
      dream_->rectify(*schedule_,
                      {noised, target_.target(*schedule_, x_start, t, draws.noise)},
                      t,
                      draws.noise,
                      answer);
  at::Tensor prediction = answer(x_t);
  if (config.predict_x_start && config.training_clamp_l2norm) prediction = l2_clamp(prediction);
  return weight_->weigh(pixel_loss(config.loss_type, prediction, target), t).mean();
}

}  // namespace dalle2
