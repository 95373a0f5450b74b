// SPDX-License-Identifier: MIT
// The sampling half of DecoderImpl, and what it refuses before it begins.
#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/decoder/stage.h"
#include "model/frozen_weight.h"
#include "model/pass_scopes.h"
#include "model/resize.h"

namespace dalle2 {
namespace {

constexpr std::array<const char*, 4> kSamplers = {"auto", "ddpm", "ddim", "dpmpp"};

void check_shape(const std::string& what, const at::Tensor& tensor, at::IntArrayRef expected) {
  if (tensor.sizes() == expected) return;
  throw DataError(
      "{}: expected shape {}, got {}", what, c10::str(expected), c10::str(tensor.sizes()));
}

// [B, C, any, any]
void check_image(const char* what, const at::Tensor& image, int64_t batch, int64_t channels) {
  if (image.dim() == 4 && image.size(0) == batch && image.size(1) == channels) return;
  throw DataError("{}: expected [{}, {}, height, width], got {}",
                  what,
                  batch,
                  channels,
                  c10::str(image.sizes()));
}

void check_inpainting(const DecoderSampleOptions& options, int64_t batch, int64_t channels) {
  if (options.inpaint_image.defined() != options.inpaint_mask.defined()) {
    throw ConfigError(
        "inpainting: expected both an image and a mask, got only the {}\n  Give the other one too, "
        "or neither.",
        options.inpaint_image.defined() ? "image" : "mask");
  }
  if (!options.inpaint_image.defined()) return;
  check_image("--inpaint-image", options.inpaint_image, batch, channels);
  const at::Tensor& image = options.inpaint_image;
  check_shape("--inpaint-mask", options.inpaint_mask, {batch, image.size(2), image.size(3)});
  if (options.inpaint_resample_times < 1) {
    throw ConfigError("inpainting: expected at least 1 pass for each step, got {}",
                      options.inpaint_resample_times);
  }
  if (options.sampler == "dpmpp") {
    throw ConfigError(
        "inpainting: the sampler dpmpp cannot repeat a step\n  Use ddpm or ddim with it.");
  }
}

std::optional<int64_t> asked_steps(const DecoderSampleOptions& options, int64_t unet_number) {
  return options.sample_timesteps.at(static_cast<size_t>(unet_number - 1));
}

// What gives the steps of a unet, for messages.
std::string steps_name(const DecoderSampleOptions& options, int64_t unet_number) {
  return asked_steps(options, unet_number) ? options.steps_name : "/decoder/sample_timesteps";
}

// Steps of a sampler that takes fewer than all of the T training steps.
void check_steps(const DecoderSampleOptions& options, const UnetPlan& plan, int64_t unet_number) {
  const std::optional<int64_t> asked = asked_steps(options, unet_number);
  const std::optional<int64_t> steps = asked ? asked : plan.sample_timesteps;
  if (!steps) return;
  // dpmpp spaces its steps over T - 1 different noise levels.
  const int64_t most = options.sampler == "dpmpp" ? plan.timesteps - 1 : plan.timesteps;
  const std::string name = steps_name(options, unet_number);
  if (*steps < 1 || *steps > most) {
    throw ConfigError("{} of unet {}: expected 1 to {}, got {}", name, unet_number, most, *steps);
  }
  if (options.sampler == "ddpm" && asked && *steps < plan.timesteps) {
    throw ConfigError(
        "{} of unet {}: the sampler ddpm takes all {} training steps, got {}\n"
        "  Leave the number out, or use ddim or dpmpp.",
        name,
        unet_number,
        plan.timesteps,
        *steps);
  }
}

// Steps of dpmpp where nothing says how many.
constexpr int64_t kDefaultDpmppSteps = 20;

// Keeps one unet on the device and parks the others in host memory; puts all back at the end.
class OneUnetOnDevice {
 public:
  OneUnetOnDevice(std::vector<std::shared_ptr<UnetImpl>> unets,
                  const std::shared_ptr<UnetImpl>& active,
                  const at::Device& device)
      : unets_(std::move(unets)), device_(device) {
    for (const auto& unet : unets_) {
      if (unet != active) unet->to(at::kCPU);
    }
    active->to(device_);
  }
  ~OneUnetOnDevice() {
    for (const auto& unet : unets_) unet->to(device_);
  }
  OneUnetOnDevice(const OneUnetOnDevice&) = delete;
  OneUnetOnDevice& operator=(const OneUnetOnDevice&) = delete;

 private:
  std::vector<std::shared_ptr<UnetImpl>> unets_;
  at::Device device_;
};

// The given part of a picture that is to be kept (RePaint, Lugmayr et al. 2022).
struct Inpainting {
  at::Tensor image;  // [B, C, S, S] in [-1, 1]; undefined without inpainting
  at::Tensor keep;   // [B, 1, S, S] bool
  int64_t resample_times = 1;

  at::Tensor paste(const at::Tensor& x, const at::Tensor& given) const {
    return at::where(keep, given, x);
  }
};

Inpainting make_inpainting(const DecoderSampleOptions& options, int64_t size, ImageRange range) {
  if (!options.inpaint_image.defined()) return {};
  const at::Tensor mask = options.inpaint_mask.to(at::kFloat).unsqueeze(1);
  return {resize_image_to(range.normalize(options.inpaint_image), size, std::nullopt, true),
          resize_image_to(mask, size, std::nullopt, true).to(at::kBool),
          options.inpaint_resample_times};
}

// Asks a stage's network for the clean image of a step: guidance and clipping.
struct Denoiser {
  UnetImpl& unet;
  const UnetPlan& plan;
  const DecoderConfig& config;
  const NoiseScheduleImpl& schedule;
  DdimLayout ddim;
  double cond_scale, cfg_rescale;
  UnetConditions conditions;

  // `earlier` is the clean image of the step before; undefined at the first step.
  Denoised operator()(const at::Tensor& x, const at::Tensor& times, const at::Tensor& earlier) {
    if (unet.config().self_cond) conditions.self_cond = earlier;
    const auto [prediction, raw_fraction] =
        split_output(guided_output(x, times).to(x.scalar_type()), plan.learned_variance);
    const at::Tensor x_start = schedule.x_start_of(plan.objective, x, times, prediction);
    return {clipped(x_start),
            raw_fraction,
            ddim_noise(ddim, schedule, plan.objective, x, times, prediction, x_start)};
  }

  at::Tensor clipped(const at::Tensor& x_start) const {
    if (plan.latent) return x_start;
    if (config.use_dynamic_thres) {
      return dynamic_threshold(x_start, config.dynamic_thres_percentile);
    }
    return x_start.clamp(-1, 1);
  }

  at::Tensor guided_output(const at::Tensor& x, const at::Tensor& times) {
    if (cfg_rescale == 0 || cond_scale == 1) {
      return unet.forward_with_cond_scale(x, times, conditions, cond_scale);
    }
    const auto [conditional, unconditional] = unet.forward_with_and_without(x, times, conditions);
    const at::Tensor guided = unconditional + (conditional - unconditional) * cond_scale;
    const auto [of_x, variance] = split_output(guided, plan.learned_variance);
    const at::Tensor rescaled =
        rescale_guidance(of_x, split_output(conditional, plan.learned_variance).first, cfg_rescale);
    return variance.defined() ? at::cat({rescaled, variance}, 1) : rescaled;
  }
};

// From noise to a clean image in [-1, 1].
at::Tensor walk(Sampler& sampler,
                Denoiser& denoise,
                const NoiseScheduleImpl& schedule,
                const Inpainting& inpainting,
                at::Tensor x,
                const NoiseSource& noise,
                const std::function<void(size_t step, size_t steps)>& on_step) {
  const std::vector<TimePair> pairs = sampler.time_pairs();
  const auto filled = [&x](int64_t time) {
    return at::full({x.size(0)}, time, x.options().dtype(at::kLong));
  };
  at::Tensor x_start;
  for (size_t i = 0; i < pairs.size(); ++i) {
    on_step(i, pairs.size());
    const bool last_step = i + 1 == pairs.size();
    const at::Tensor times = filled(pairs[i].time);
    for (int64_t repeat = inpainting.resample_times; repeat > 0; --repeat) {
      if (inpainting.image.defined()) {
        const at::Tensor given =
            schedule.q_sample(inpainting.image, times, noise(inpainting.image.sizes()));
        x = inpainting.paste(x, given);
      }
      const Denoised denoised = denoise(x, times, x_start);
      x_start = denoised.x_start;
      x = sampler.step(x, times, pairs[i], denoised, noise);
      // Noised again and repeated, so that the drawn part comes to agree with the given one.
      if (repeat > 1 && !last_step) {
        x = schedule.q_sample_from_to(x, filled(pairs[i].next), times, noise(x.sizes()));
      }
    }
  }
  return inpainting.image.defined() ? inpainting.paste(x, inpainting.image) : x;
}

}  // namespace

void DecoderImpl::check_guidance(const DecoderSampleOptions& options) const {
  const DecoderConfig& config = plan_.config;
  if (!options.cond_scale.is_one() && options.cond_scale.size() != stages_.size()) {
    throw ConfigError("cond_scale: expected one value or one for each of the {} unets, got {}",
                      num_unets(),
                      options.cond_scale.size());
  }
  const auto& scales = options.cond_scale.values();
  const bool guided = std::ranges::any_of(scales, [](double s) { return s != 1; });
  if (guided && config.image_cond_drop_prob <= 0 && config.text_cond_drop_prob <= 0) {
    throw ConfigError(
        "cond_scale: the decoder was not trained with conditional dropout, so it cannot be guided "
        "(expected 1)\n  Train it with /decoder/image_cond_drop_prob or text_cond_drop_prob above "
        "0.");
  }
  if (!(options.cfg_rescale >= 0 && options.cfg_rescale <= 1)) {
    throw ConfigError("cfg_rescale: expected 0 to 1, got {}", options.cfg_rescale);
  }
}

int64_t DecoderImpl::check_sample_options(const DecoderSampleOptions& options) const {
  const int64_t stop = options.stop_at_unet.value_or(num_unets());
  if (options.start_at_unet < 1 || stop > num_unets() || options.start_at_unet > stop) {
    throw ConfigError("unets to sample: expected a first and a last of 1 to {}, got {} and {}",
                      num_unets(),
                      options.start_at_unet,
                      stop);
  }
  if (std::ranges::find(kSamplers, options.sampler) == kSamplers.end()) {
    throw ConfigError("sampler: expected auto, ddpm, ddim or dpmpp, got \"{}\"", options.sampler);
  }
  check_guidance(options);
  if (!options.sample_timesteps.is_one() && options.sample_timesteps.size() != stages_.size()) {
    throw ConfigError(
        "sample timesteps: expected one value or one for each of the {} unets, got {}",
        num_unets(),
        options.sample_timesteps.size());
  }
  const bool first_stage = options.start_at_unet == 1;
  if (!first_stage && !options.image.defined()) {
    throw ConfigError(
        "unets to sample: an image is needed to start at unet {}\n  Give the output of unet {}, or "
        "start at unet 1.",
        options.start_at_unet,
        options.start_at_unet - 1);
  }
  check_conditions(first_stage && !plan_.config.unconditional,
                   plan_.text_conditioned(options.start_at_unet, stop),
                   options.image_embeds,
                   options.text_encodings);

  int64_t batch = options.batch_size;
  if (!first_stage) batch = options.image.size(0);
  if (options.image_embeds.defined()) batch = options.image_embeds.size(0);
  const int64_t channels = plan_.config.channels;
  if (!first_stage) check_image("--image", options.image, batch, channels);
  if (options.text_encodings.defined() && options.text_encodings.size(0) != batch) {
    throw DataError("text encodings: expected one row for each of the {} samples, got {}",
                    batch,
                    options.text_encodings.size(0));
  }
  check_inpainting(options, batch, channels);

  const auto sampled = static_cast<size_t>(stop - options.start_at_unet + 1);
  if (!options.init_noise.empty() && options.init_noise.size() != sampled) {
    throw ConfigError("initial noise: expected one array for each of the {} sampled unets, got {}",
                      sampled,
                      options.init_noise.size());
  }
  for (size_t i = 0; i < sampled; ++i) check_stage_options(options, i, batch);
  return batch;
}

void DecoderImpl::check_has_unet(int64_t unet_number) const {
  if (stage(unet_number).unet) return;
  throw ConfigError(
      "unets to sample: unet {} has no weights here, it was left out of the training\n  Stop before "
      "it, or take a checkpoint that holds it.",
      unet_number);
}

void DecoderImpl::check_stage_options(const DecoderSampleOptions& options,
                                      size_t order,
                                      int64_t batch) const {
  const int64_t unet_number = options.start_at_unet + static_cast<int64_t>(order);
  const Stage& s = stage(unet_number);
  check_has_unet(unet_number);
  check_steps(options, s.plan, unet_number);
  if (!options.init_noise.empty()) {
    const int64_t side = s.plan.map_side(s.plan.image_size);
    check_shape(fmt::format("--init-noise of unet {}", unet_number),
                options.init_noise[order],
                {batch, s.plan.unet.channels, side, side});
  }
  if (s.plan.latent && options.inpaint_image.defined()) {
    throw ConfigError(
        "inpainting: unet {} works in the latent space of a VAE, where a picture and a mask of "
        "pixels mean nothing\n  Complete pictures with a decoder that works on pixels.",
        unet_number);
  }
  if (s.schedule->has_zero_terminal_snr() && s.plan.objective == Objective::eps &&
      make_sampler(unet_number, options)->time_pairs().front().time == s.plan.timesteps - 1) {
    throw ConfigError(
        "{} of unet {}: the first step holds nothing of the image, and a network that predicts noise "
        "cannot restore it\n  Use ddim with fewer than {} steps.",
        steps_name(options, unet_number),
        unet_number,
        s.plan.timesteps - 1);
  }
}

at::Tensor DecoderImpl::sample(const DecoderSampleOptions& options) {
  const at::NoGradGuard no_grad;
  const EvalScope eval(*this);
  const int64_t batch = check_sample_options(options);
  const NoiseSource noise =
      noise_source(options.noise, options.row_generators, options.generator, device());

  at::Tensor image;
  if (options.start_at_unet > 1) {
    const int64_t size = stage(options.start_at_unet - 1).plan.image_size;
    image = resize_image_to(options.image, size, std::nullopt, plan_.layout.nearest);
  }
  const int64_t stop = options.stop_at_unet.value_or(num_unets());
  for (int64_t number = options.start_at_unet; number <= stop; ++number) {
    std::optional<OneUnetOnDevice> only_this;
    if (options.one_unet_in_gpu && !device().is_cpu()) {
      std::vector<std::shared_ptr<UnetImpl>> unets;
      for (const auto& s : stages_) {
        if (s->unet) unets.push_back(s->unet);
      }
      only_this.emplace(std::move(unets), stage(number).unet, device());
    }
    image = inferred([&] { return sample_stage(number, image, batch, options, noise); });
  }
  return image;
}

at::Tensor DecoderImpl::sample_stage(int64_t unet_number,
                                     const at::Tensor& previous,
                                     int64_t batch,
                                     const DecoderSampleOptions& options,
                                     const NoiseSource& noise) {
  const WeightsAtRest weights_at_rest;
  Stage& s = stage(unet_number);
  const DecoderConfig& config = plan_.config;
  const int64_t size = s.plan.image_size;
  const bool with_ddim = walks_with_ddim(unet_number, options);
  UnetConditions conditions;
  conditions.image_embed = options.image_embeds;
  conditions.text_encodings = options.text_encodings;
  if (s.lowres) {
    LowresImage lowres{s.lowres->resize(previous, size), {}};
    if (s.plan.lowres_noise) {
      const auto level = static_cast<int64_t>(config.lowres_noise_sample_level *
                                              LowresConditionerImpl::kNoiseLevels);
      const at::Tensor levels =
          at::full({batch}, level, at::TensorOptions(device()).dtype(at::kLong));
      lowres = s.lowres->add_noise(lowres.image, levels, noise(lowres.image.sizes()));
    }
    const bool as_it_is = !plan_.layout.normalized_in_ddim && s.vae.is_empty() && with_ddim;
    conditions.lowres_cond_img = as_it_is ? lowres.image : s.from_images(lowres.image);
    conditions.lowres_noise_level = lowres.noise_level;
  }

  Denoiser denoise{.unet = *s.unet,
                   .plan = s.plan,
                   .config = config,
                   .schedule = *s.schedule,
                   .ddim = with_ddim ? plan_.layout.ddim : DdimLayout{},
                   .cond_scale = options.cond_scale.at(static_cast<size_t>(unet_number - 1)),
                   .cfg_rescale = options.cfg_rescale,
                   .conditions = std::move(conditions)};

  const auto order = static_cast<size_t>(unet_number - options.start_at_unet);
  const int64_t side = s.plan.map_side(size);
  const at::Tensor start = options.init_noise.empty()
                               ? noise({batch, s.plan.unet.channels, side, side})
                               : options.init_noise[order];
  const auto on_step = [&](size_t step, size_t steps) {
    if (options.on_step) options.on_step(unet_number, step, steps);
  };
  const std::unique_ptr<Sampler> sampler = make_sampler(unet_number, options);
  return s.to_images(walk(*sampler,
                          denoise,
                          *s.schedule,
                          make_inpainting(options, size, range_),
                          start,
                          noise,
                          on_step));
}

int64_t DecoderImpl::sample_steps(int64_t unet_number, const DecoderSampleOptions& options) const {
  return std::ssize(make_sampler(unet_number, options)->time_pairs());
}

bool DecoderImpl::walks_with_ddim(int64_t unet_number, const DecoderSampleOptions& options) const {
  const UnetPlan& plan = stage(unet_number).plan;
  const int64_t steps =
      asked_steps(options, unet_number).value_or(plan.sample_timesteps.value_or(plan.timesteps));
  return options.sampler == "ddim" || (options.sampler == "auto" && steps < plan.timesteps);
}

std::unique_ptr<Sampler> DecoderImpl::make_sampler(int64_t unet_number,
                                                   const DecoderSampleOptions& options) const {
  const Stage& s = stage(unet_number);
  const int64_t total = s.plan.timesteps;
  const std::optional<int64_t> asked = asked_steps(options, unet_number);
  const std::optional<int64_t> wanted = asked ? asked : s.plan.sample_timesteps;
  if (options.sampler == "dpmpp") {
    return make_dpmpp_sampler(s.schedule, wanted.value_or(std::min(kDefaultDpmppSteps, total - 1)));
  }
  if (walks_with_ddim(unet_number, options)) {
    return make_ddim_sampler(s.schedule,
                             {.steps = wanted.value_or(total),
                              .eta = plan_.config.ddim_sampling_eta,
                              .previous_levels = plan_.layout.ddim.previous_levels});
  }
  return make_ddpm_sampler(s.schedule, s.variance);
}

}  // namespace dalle2
