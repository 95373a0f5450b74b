// SPDX-License-Identifier: MIT
#include "diffusion/decoder/lowres_conditioner.h"

#include <torch/torch.h>

#include "base/error.h"
#include "model/resize.h"

namespace dalle2 {
namespace {

// One value is a range of itself.
template <class T>
std::pair<T, T> bounds_of(const OneOrMany<T>& value) {
  return {value.values().front(), value.values().back()};
}

}  // namespace

at::Tensor gaussian_blur(const at::Tensor& image, int64_t kernel_size, double sigma) {
  const int64_t reach = kernel_size / 2;
  D2_CHECK(kernel_size % 2 == 1 && reach < image.size(2) && reach < image.size(3),
           "a blur kernel of {} pixels for images of {} x {}",
           kernel_size,
           image.size(2),
           image.size(3));
  // Autocast would round pixels to half precision.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t channels = image.size(1);
  at::Tensor kernel = at::arange(-reach, reach + 1, image.options()).square();
  kernel = at::exp(kernel / (-2 * sigma * sigma));
  kernel = kernel / kernel.sum();

  const at::Tensor padded = at::reflection_pad2d(image, {reach, reach, reach, reach});
  const at::Tensor down = kernel.view({1, 1, -1, 1}).expand({channels, 1, -1, 1});
  const at::Tensor across = kernel.view({1, 1, 1, -1}).expand({channels, 1, 1, -1});
  const auto convolve = [channels](const at::Tensor& x, const at::Tensor& weight) {
    return at::conv2d(x,
                      weight,
                      /*bias=*/{},
                      /*stride=*/{1, 1},
                      /*padding=*/at::IntArrayRef{0, 0},
                      /*dilation=*/{1, 1},
                      channels);
  };
  return convolve(convolve(padded, across), down);
}

LowresConditionerImpl::LowresConditionerImpl(const LowresOptions& options) : options_(options) {
  if (options_.use_noise) {
    NoiseScheduleOptions linear;
    linear.kind = BetaSchedule::linear;
    linear.timesteps = kNoiseLevels;
    noise_scheduler_ = register_module("noise_scheduler", NoiseSchedule(linear));
  }
}

LowresDraws LowresConditionerImpl::draw_blur(at::Generator generator) const {
  LowresDraws draws;
  if (!options_.use_blur) return draws;
  const at::Tensor u = at::rand({3}, generator, at::kDouble);
  draws.blur = u[0].item<double>() < options_.blur_prob;
  const auto [sigma_low, sigma_high] = bounds_of(options_.blur_sigma);
  draws.blur_sigma = sigma_low + (sigma_high - sigma_low) * u[1].item<double>();
  const auto [kernel_low, kernel_high] = bounds_of(options_.blur_kernel_size);
  // Only odd kernels have a middle.
  const auto sizes = static_cast<double>((kernel_high - kernel_low) / 2 + 1);
  draws.blur_kernel_size = kernel_low + 2 * static_cast<int64_t>(u[2].item<double>() * sizes);
  return draws;
}

LowresImage LowresConditionerImpl::forward(const at::Tensor& image,
                                           int64_t target_size,
                                           int64_t previous_size,
                                           const LowresDraws& draws) const {
  const bool plain = options_.layout.plain_in_eval && !is_training();
  at::Tensor x = image;
  if (options_.downsample_first && !plain) x = resize(x, previous_size);
  if (options_.use_blur && draws.blur && !plain) {
    x = gaussian_blur(x, draws.blur_kernel_size, draws.blur_sigma);
  }
  x = resize(x, target_size);
  if (!options_.use_noise) return {x, {}};
  return add_noise(x, draws.noise_level, draws.noise);
}

at::Tensor LowresConditionerImpl::resize(const at::Tensor& image, int64_t size) const {
  const auto bounds =
      options_.layout.clamped ? std::optional(options_.range.bounds()) : std::nullopt;
  return resize_image_to(image, size, bounds, options_.layout.nearest);
}

LowresImage LowresConditionerImpl::add_noise(const at::Tensor& image,
                                             const at::Tensor& level,
                                             const at::Tensor& noise) const {
  D2_CHECK(options_.use_noise, "noise for a low-resolution image without a noise schedule");
  const at::Tensor x = options_.range.normalize(image);
  return {options_.range.unnormalize(noise_scheduler_->q_sample(x, level, noise)), level};
}

}  // namespace dalle2
