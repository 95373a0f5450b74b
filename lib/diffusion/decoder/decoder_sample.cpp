// SPDX-License-Identifier: MIT
// The sampling half of DecoderImpl.
#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/decoder/stage.h"
#include "diffusion/denoiser.h"
#include "model/frozen_weight.h"
#include "model/pass_scopes.h"
#include "model/resize.h"

namespace dalle2 {
namespace {

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
      const Denoised denoised =
          denoise(x, times, denoise.uses_self_cond() ? x_start : at::Tensor());
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

at::Tensor DecoderImpl::sample(const DecoderSampleOptions& options) {
  const at::NoGradGuard no_grad;
  const EvalScope eval(*this);
  const int64_t batch = check_sample_options(options);
  const NoiseSource noise = noise_source(options.noise, options.generator, device());

  at::Tensor image;
  if (options.start_at_unet > 1) {
    const int64_t size = stage(options.start_at_unet - 1).plan.image_size;
    image = resize_image_to(options.image, size, std::nullopt, /*nearest=*/true);
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
  UnetConditions conditions;
  conditions.image_embed = options.image_embeds;
  conditions.text_encodings = options.text_encodings;
  if (s.lowres) {
    LowresImage lowres{resize_image_to(previous, size, range_.bounds(), /*nearest=*/true), {}};
    if (s.plan.lowres_noise) {
      const auto level = static_cast<int64_t>(config.lowres_noise_sample_level *
                                              LowresConditionerImpl::kNoiseLevels);
      const at::Tensor levels =
          at::full({batch}, level, at::TensorOptions(device()).dtype(at::kLong));
      lowres = s.lowres->add_noise(lowres.image, levels, noise(lowres.image.sizes()));
    }
    conditions.lowres_cond_img = s.space->from_images(lowres.image);
    conditions.lowres_noise_level = lowres.noise_level;
  }

  DenoiserOptions denoiser_options;
  denoiser_options.cond_scale = options.cond_scale.at(static_cast<size_t>(unet_number - 1));
  denoiser_options.cfg_rescale = options.cfg_rescale;
  denoiser_options.learned_variance = s.plan.learned_variance;
  if (s.space->is_bounded()) denoiser_options.threshold = static_threshold;
  if (s.space->is_bounded() && config.use_dynamic_thres) {
    denoiser_options.threshold = [percentile =
                                      config.dynamic_thres_percentile](const at::Tensor& x) {
      return dynamic_threshold(x, percentile);
    };
  }
  Denoiser denoise(s.unet, s.schedule, s.target, std::move(conditions), denoiser_options);

  const auto order = static_cast<size_t>(unet_number - options.start_at_unet);
  const int64_t side = s.plan.map_side(size);
  const at::Tensor start = options.init_noise.empty()
                               ? noise({batch, s.plan.unet.channels, side, side})
                               : options.init_noise[order];
  const auto on_step = [&](size_t step, size_t steps) {
    if (options.on_step) options.on_step(unet_number, step, steps);
  };
  const std::unique_ptr<Sampler> sampler = make_sampler(unet_number, options);
  return s.space->to_images(walk(*sampler,
                                 denoise,
                                 *s.schedule,
                                 make_inpainting(options, size, range_),
                                 start,
                                 noise,
                                 on_step));
}

std::unique_ptr<Sampler> DecoderImpl::make_sampler(int64_t unet_number,
                                                   const DecoderSampleOptions& options) const {
  const Stage& s = stage(unet_number);
  const int64_t total = s.plan.timesteps;
  const std::optional<int64_t> asked =
      options.sample_timesteps.at(static_cast<size_t>(unet_number - 1));
  const std::optional<int64_t> wanted = asked ? asked : s.plan.sample_timesteps;
  if (options.sampler == "dpmpp") {
    return make_dpmpp_sampler(s.schedule, wanted.value_or(std::min(kDefaultDpmppSteps, total - 1)));
  }
  const int64_t steps = wanted.value_or(total);
  if (options.sampler == "ddim" || (options.sampler == "auto" && steps < total)) {
    return make_ddim_sampler(s.schedule, steps, plan_.config.ddim_sampling_eta);
  }
  return make_ddpm_sampler(s.schedule, s.variance);
}

}  // namespace dalle2
