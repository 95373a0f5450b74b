// SPDX-License-Identifier: MIT
#include "diffusion/timestep_density.h"

#include <torch/torch.h>

#include <numbers>

#include "base/error.h"

namespace dalle2 {
namespace {

at::TensorOptions floats(const at::Generator& generator) {
  return at::TensorOptions(generator.device()).dtype(at::kFloat);
}

class UniformDensity final : public TimestepDensity {
 public:
  at::Tensor draw(int64_t batch, int64_t timesteps, at::Generator generator) const override {
    const auto integers = at::TensorOptions(generator.device()).dtype(at::kLong);
    return at::randint(0, timesteps, {batch}, std::move(generator), integers);
  }
};

class LogitNormalDensity final : public TimestepDensity {
 public:
  LogitNormalDensity(double mean, double std) : mean_(mean), std_(std) {}
  at::Tensor draw(int64_t batch, int64_t timesteps, at::Generator generator) const override {
    const at::Tensor normals = at::randn({batch}, generator, floats(generator));
    return times_of(logit_normal_density(normals, mean_, std_), timesteps);
  }

 private:
  double mean_, std_;
};

class ModeDensity final : public TimestepDensity {
 public:
  explicit ModeDensity(double scale) : scale_(scale) {}
  at::Tensor draw(int64_t batch, int64_t timesteps, at::Generator generator) const override {
    const at::Tensor uniforms = at::rand({batch}, generator, floats(generator));
    return times_of(mode_density(uniforms, scale_), timesteps);
  }

 private:
  double scale_;
};

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

std::unique_ptr<TimestepDensity> make_timestep_density(const TimestepSamplingConfig& config) {
  switch (config.scheme) {
    case TimestepScheme::uniform:
      return std::make_unique<UniformDensity>();
    case TimestepScheme::logit_normal:
      return std::make_unique<LogitNormalDensity>(needed(config.logit_mean, "logit_mean"),
                                                  needed(config.logit_std, "logit_std"));
    case TimestepScheme::mode:
      return std::make_unique<ModeDensity>(needed(config.mode_scale, "mode_scale"));
  }
  broken_invariant(__FILE__, __LINE__, "a timestep scheme without a density");
}

}  // namespace dalle2
