// SPDX-License-Identifier: MIT
#include "diffusion/timestep_density.h"

#include <torch/torch.h>

#include <numbers>

#include "base/error.h"

namespace dalle2 {
namespace {

double needed(const std::optional<double>& value, const char* key) {
  if (!value) {
    throw ConfigError(
        "timestep_sampling: expected a number for {}, which the scheme needs, got null", key);
  }
  return *value;
}

}  // namespace

at::Tensor logit_normal_density(const at::Tensor& normals, double mean, double std) {
  return at::sigmoid(normals * std + mean);
}

at::Tensor mode_density(const at::Tensor& uniforms, double scale) {
  const at::Tensor bump = at::cos(uniforms * (std::numbers::pi / 2)).square() - 1 + uniforms;
  return 1 - uniforms - scale * bump;
}

at::Tensor times_of(const at::Tensor& u, int64_t timesteps) {
  const at::Tensor index = (u * static_cast<double>(timesteps)).floor().to(at::kLong);
  return timesteps - 1 - index.clamp(0, timesteps - 1);
}

TimestepDensity::TimestepDensity(const TimestepSamplingConfig& config) : scheme_(config.scheme) {
  if (scheme_ == TimestepScheme::logit_normal) {
    mean_ = needed(config.logit_mean, "logit_mean");
    std_ = needed(config.logit_std, "logit_std");
  }
  if (scheme_ == TimestepScheme::mode) mode_scale_ = needed(config.mode_scale, "mode_scale");
}

at::Tensor TimestepDensity::draw(int64_t batch, int64_t timesteps, at::Generator generator) const {
  const at::TensorOptions options(generator.device());
  const auto floats = options.dtype(at::kFloat);
  switch (scheme_) {
    case TimestepScheme::uniform:
      return at::randint(0, timesteps, {batch}, std::move(generator), options.dtype(at::kLong));
    case TimestepScheme::logit_normal:
      return times_of(logit_normal_density(at::randn({batch}, generator, floats), mean_, std_),
                      timesteps);
    case TimestepScheme::mode:
      return times_of(mode_density(at::rand({batch}, generator, floats), mode_scale_), timesteps);
  }
  broken_invariant(__FILE__, __LINE__, "a timestep scheme without a density");
}

}  // namespace dalle2
