// SPDX-License-Identifier: MIT
#include "diffusion/decoder/decoder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include "base/error.h"
#include "diffusion/decoder/stage.h"
#include "model/pass_scopes.h"
#include "model/random.h"
#include "model/resize.h"

namespace dalle2 {
namespace {

// The same window of each sample for the image and its low-resolution companion.
at::Tensor crop(const at::Tensor& images, const std::vector<CropOffset>& offsets, int64_t side) {
  std::vector<at::Tensor> crops;
  for (size_t i = 0; i < offsets.size(); ++i) {
    crops.push_back(images[static_cast<int64_t>(i)]
                        .narrow(1, offsets[i].y, side)
                        .narrow(2, offsets[i].x, side));
  }
  return at::stack(crops);
}

std::vector<CropOffset> draw_crops(int64_t batch, int64_t free_pixels, at::Generator generator) {
  const at::Tensor offsets = at::randint(0, free_pixels + 1, {2, batch}, generator, at::kLong);
  std::vector<CropOffset> crops(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    crops[static_cast<size_t>(i)] = {offsets[0][i].item<int64_t>(), offsets[1][i].item<int64_t>()};
  }
  return crops;
}

// Blur for the batch; with noise, a level for each sample and noise of `sizes` [B, C, S, S].
LowresDraws draw_lowres(const LowresConditionerImpl& lowres,
                        at::IntArrayRef sizes,
                        const at::Generator& host,
                        const at::Generator& generator,
                        const at::Device& device) {
  LowresDraws draws = lowres.draw_blur(host);
  if (!lowres.options().use_noise) return draws;
  const at::TensorOptions options(generator.device());
  draws.noise_level =
      at::randint(
          0, LowresConditionerImpl::kNoiseLevels, {sizes[0]}, generator, options.dtype(at::kLong))
          .to(device);
  draws.noise = at::randn(sizes, generator, options.dtype(at::kFloat)).to(device);
  return draws;
}

}  // namespace

at::Tensor DecoderImpl::Stage::from_images(const at::Tensor& images) const {
  if (vae.is_empty()) return range.normalize(images);
  const torch::NoGradGuard no_grad;
  // Autocast would round what targets are made of to half precision; stored latents are fp32.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  vae.ptr()->eval();
  return vae.ptr()->encode_unquantized(images) * plan.latent->scale;
}

at::Tensor DecoderImpl::Stage::to_images(const at::Tensor& x) const {
  if (vae.is_empty()) return range.unnormalize(x);
  const torch::NoGradGuard no_grad;
  vae.ptr()->eval();
  return vae.ptr()->decode_unquantized(x / plan.latent->scale);
}

void check_size(const at::Tensor& images, int64_t side) {
  if (images.size(2) >= side && images.size(3) >= side) return;
  throw DataError(
      "images: expected at least {} x {} pixels, the unet's size, got {} x {}\n  Let "
      "/data/preprocessing make them as large as the largest of /decoder/image_sizes.",
      side,
      side,
      images.size(2),
      images.size(3));
}

DecoderImpl::DecoderImpl(const DecoderPlan& plan)
    : plan_(plan), range_{plan.config.auto_normalize_img} {
  // Registered in the order of the reference's state dict.
  unets_ = register_module("unets", std::make_shared<torch::nn::Module>("ModuleList"));
  vaes_ = register_module("vaes", std::make_shared<torch::nn::Module>("ModuleList"));
  noise_schedulers_ =
      register_module("noise_schedulers", std::make_shared<torch::nn::Module>("ModuleList"));
  lowres_conds_ =
      register_module("lowres_conds", std::make_shared<torch::nn::Module>("ModuleList"));
  for (const UnetPlan& stage_plan : plan_.stages) {
    stages_.push_back(make_stage(stage_plan, num_unets() + 1));
  }
}

DecoderImpl::~DecoderImpl() = default;

std::unique_ptr<DecoderImpl::Stage> DecoderImpl::make_stage(const UnetPlan& plan,
                                                            int64_t unet_number) {
  const DecoderConfig& config = plan_.config;
  const std::string key = std::to_string(unet_number - 1);
  auto stage = std::make_unique<Stage>();
  stage->plan = plan;
  stage->unet = unets_->register_module(key, std::make_shared<UnetImpl>(plan.unet));

  stage->range = range_;
  if (plan.latent) stage->vae = vaes_->register_module(key, frozen_vae(*plan.latent->model));

  NoiseScheduleOptions schedule;
  schedule.kind = plan.beta_schedule;
  schedule.timesteps = plan.timesteps;
  schedule.p2_loss_weight_gamma = plan.p2_loss_weight_gamma;
  schedule.p2_loss_weight_k = config.p2_loss_weight_k;
  schedule.zero_terminal_snr = config.zero_terminal_snr;
  stage->schedule = noise_schedulers_->register_module(key, NoiseSchedule(schedule));
  if (unet_number > 1) {
    const LowresOptions lowres{.use_blur = plan.lowres_blur,
                               .use_noise = plan.lowres_noise,
                               .downsample_first = config.lowres_downsample_first,
                               .blur_prob = config.blur_prob,
                               .blur_sigma = config.blur_sigma,
                               .blur_kernel_size = config.blur_kernel_size,
                               .range = range_,
                               .layout = plan_.layout};
    stage->lowres = lowres_conds_->register_module(key, LowresConditioner(lowres));
  }

  if (plan.learned_variance) {
    stage->variance = LearnedVariance{config.learned_variance_constrain_frac};
  }
  return stage;
}

at::Device DecoderImpl::device() const {
  return stages_.front()->schedule->betas.device();
}

DecoderImpl::Stage& DecoderImpl::stage(int64_t unet_number) const {
  if (unet_number < 1 || unet_number > num_unets()) {
    throw ConfigError(
        "unet number {}: expected 1 to {}, the unets of /decoder/unets", unet_number, num_unets());
  }
  return *stages_[static_cast<size_t>(unet_number - 1)];
}

std::shared_ptr<UnetImpl> DecoderImpl::unet(int64_t unet_number) {
  return stage(unet_number).unet;
}

VqganVae DecoderImpl::vae(int64_t unet_number) const {
  return stage(unet_number).vae;
}

void DecoderImpl::drop_unet(int64_t unet_number) {
  Stage& s = stage(unet_number);
  if (!s.unet) return;
  unets_->unregister_module(std::to_string(unet_number - 1));
  s.unet.reset();
}

DecoderStepNoise DecoderImpl::draw(int64_t batch,
                                   int64_t unet_number,
                                   at::Generator generator) const {
  const Stage& s = stage(unet_number);
  const UnetPlan& plan = s.plan;
  const at::Device home = generator.device();
  const auto floats = at::TensorOptions(home).dtype(at::kFloat);
  at::Generator host = host_generator(generator);
  const int64_t side = plan.random_crop_size.value_or(plan.image_size);

  DecoderStepNoise draws;
  draws.dropout_seed = generator.current_seed();
  draws.times =
      draw_times(plan.loss.timestep_sampling, batch, plan.timesteps, generator).to(device());
  const int64_t map_side = plan.map_side(side);
  draws.noise =
      at::randn({batch, plan.unet.channels, map_side, map_side}, generator, floats).to(device());
  draws.image_keep_mask =
      prob_mask(batch, 1 - plan_.config.image_cond_drop_prob, home, generator).to(device());
  draws.text_keep_mask =
      prob_mask(batch, 1 - plan_.config.text_cond_drop_prob, home, generator).to(device());
  if (plan.unet.self_cond) draws.self_condition = draw_self_condition(host);
  if (plan.random_crop_size) draws.crop_offsets = draw_crops(batch, plan.image_size - side, host);
  if (s.lowres) {
    const int64_t whole = plan.image_size;
    draws.lowres = draw_lowres(
        *s.lowres, {batch, plan_.config.channels, whole, whole}, host, generator, device());
  }
  // Drawn last, so that it changes no other draw.
  draws.augmentation = draw_augmentation(plan.loss, draws.noise.sizes(), generator, device());
  return draws;
}

at::Tensor DecoderImpl::forward(const DecoderInputs& inputs,
                                int64_t unet_number,
                                at::Generator generator) {
  check_training_inputs(inputs, stage(unet_number));
  return loss(inputs, unet_number, draw(inputs.images.size(0), unet_number, std::move(generator)));
}

at::Tensor DecoderImpl::loss(const DecoderInputs& inputs,
                             int64_t unet_number,
                             const DecoderStepNoise& draws) {
  return loss(prepare(inputs, unet_number, draws), unet_number);
}

DecoderExamples DecoderImpl::prepare(const DecoderInputs& inputs,
                                     int64_t unet_number,
                                     const DecoderStepNoise& draws) const {
  const Stage& s = stage(unet_number);
  check_training_inputs(inputs, s);
  DecoderExamples examples;
  examples.times = draws.times;
  examples.noise = draws.noise;
  examples.augmentation = draws.augmentation;
  examples.self_condition = s.plan.unet.self_cond && draws.self_condition;
  UnetConditions& conditions = examples.conditions;
  conditions.image_embed = inputs.image_embeds;
  conditions.text_encodings = inputs.text_encodings;
  conditions.image_keep_mask = draws.image_keep_mask;
  conditions.text_keep_mask = draws.text_keep_mask;

  if (unet_number == 1 && inputs.latents.defined()) {
    examples.x_start = inputs.latents * s.plan.latent->scale;
    return examples;
  }
  LowresImage lowres;
  if (s.lowres) {
    lowres = s.lowres->forward(
        inputs.images, s.plan.image_size, stage(unet_number - 1).plan.image_size, draws.lowres);
  }
  at::Tensor images =
      resize_image_to(inputs.images, s.plan.image_size, std::nullopt, plan_.layout.nearest);
  if (s.plan.random_crop_size) {
    images = crop(images, draws.crop_offsets, *s.plan.random_crop_size);
    lowres.image = crop(lowres.image, draws.crop_offsets, *s.plan.random_crop_size);
  }
  if (s.lowres) {
    conditions.lowres_cond_img = s.from_images(lowres.image);
    conditions.lowres_noise_level = lowres.noise_level;
  }
  examples.x_start = s.from_images(images);
  return examples;
}

at::Tensor DecoderImpl::encode(const at::Tensor& images, int64_t unet_number) const {
  const Stage& s = stage(unet_number);
  return s.from_images(
      resize_image_to(images, s.plan.image_size, std::nullopt, plan_.layout.nearest));
}

at::Tensor DecoderImpl::loss(const DecoderExamples& examples, int64_t unet_number) {
  Stage& s = stage(unet_number);
  const at::Tensor& x_start = examples.x_start;
  const at::Tensor& t = examples.times;
  UnetConditions conditions = examples.conditions;
  const NoiseScheduleImpl& schedule = *s.schedule;
  const LossPlan& plan = s.plan.loss;
  const Objective objective = s.plan.objective;
  const AugmentedNoise noise = augmented_noise(plan, examples.noise, examples.augmentation);
  const at::Tensor noised = schedule.q_sample(x_start, t, noise.input);

  if (examples.self_condition) {
    const NoGradPass no_grad;
    UnetConditions everything = conditions;  // nothing is dropped in this pass
    everything.image_keep_mask = at::Tensor();
    everything.text_keep_mask = at::Tensor();
    // The output as it is, whatever the objective: as in the reference (docs/parity.md, M6).
    conditions.self_cond =
        split_output(s.unet->forward(noised, t, everything), s.plan.learned_variance).first;
  }
  // Under autocast the network answers in half precision; the losses are computed in fp32.
  const auto answer = [&](const at::Tensor& x) {
    return split_output(s.unet->forward(x, t, conditions).to(x_start.scalar_type()),
                        s.plan.learned_variance);
  };
  const auto [x_t, target] = dreamed(plan.dream,
                                     schedule,
                                     {noised, schedule.target(objective, x_start, t, noise.target)},
                                     t,
                                     noise.target,
                                     [&](const at::Tensor& x) { return answer(x).first; });
  const auto [prediction, raw_fraction] = answer(x_t);

  const at::Tensor simple = weighed(plan,
                                    s.plan.p2_loss_weight_gamma,
                                    objective,
                                    schedule,
                                    pixel_loss(plan_.config.loss_type, prediction, target),
                                    t)
                                .mean();
  if (!s.variance) return simple;

  // The output read as noise, whatever the objective: as in the reference (docs/parity.md, M7).
  const at::Tensor model_x_start = schedule.x_start_of(Objective::eps, x_t, t, prediction.detach());
  const at::Tensor bits = s.variance->bound(schedule, x_start, x_t, t, model_x_start, raw_fraction);
  return simple + bits.mean() * plan_.config.vb_loss_weight;
}

void DecoderImpl::check_training_inputs(const DecoderInputs& inputs, const Stage& s) const {
  const at::Tensor& images = inputs.images;
  if (!s.unet) {
    throw ConfigError(
        "/train/unet_training_mask: a unet that is not trained was asked for its loss");
  }
  if (images.dim() != 4 || images.size(1) != plan_.config.channels) {
    throw DataError(
        "images: expected [batch, {}, height, width], got {}\n  Set /decoder/channels to what the "
        "shards hold, or convert the images.",
        plan_.config.channels,
        c10::str(images.sizes()));
  }
  check_size(images, s.plan.image_size);
  if (&s == stages_.front().get() && inputs.latents.defined()) {
    const int64_t side = s.plan.map_side(s.plan.image_size);
    const std::vector<int64_t> expected = {images.size(0), s.plan.unet.channels, side, side};
    if (!s.plan.latent || inputs.latents.sizes() != at::IntArrayRef(expected)) {
      throw DataError(
          "latents: expected {}, got {}\n  They belong to another VAE or image size: make them again "
          "with `dalle2-train shards encode`.",
          c10::str(at::IntArrayRef(expected)),
          c10::str(inputs.latents.sizes()));
    }
  }
  check_conditions(s.plan.unet.cond_on_image_embeds,
                   plan_.text_conditioned(),
                   inputs.image_embeds,
                   inputs.text_encodings);
  for (const at::Tensor& other : {inputs.image_embeds, inputs.text_encodings}) {
    if (other.defined() && other.size(0) != images.size(0)) {
      throw DataError("conditioning: expected one row for each of the {} images, got {}",
                      images.size(0),
                      other.size(0));
    }
  }
}

void DecoderImpl::check_conditions(bool needs_image_embeds,
                                   bool needs_text,
                                   const at::Tensor& image_embeds,
                                   const at::Tensor& text_encodings) const {
  if (needs_image_embeds && !image_embeds.defined()) {
    throw DataError(
        "image embeddings: expected [batch, {}], got none\n  Give the decoder image embeddings, or "
        "train it with /decoder/unconditional.",
        plan_.stages[0].unet.image_embed_dim.value_or(0));
  }
  if (needs_text && !text_encodings.defined()) {
    throw DataError(
        "text encodings: expected [batch, length, width], got none\n  A unet has "
        "cond_on_text_encodings: give the decoder text encodings (with `sample`: "
        "--text-encodings).");
  }
  if (!plan_.text_conditioned() && text_encodings.defined()) {
    throw DataError(
        "text encodings: expected none, got {}\n  No unet has cond_on_text_encodings: leave the "
        "text out, or set it in /decoder/unets.",
        c10::str(text_encodings.sizes()));
  }
}

}  // namespace dalle2
