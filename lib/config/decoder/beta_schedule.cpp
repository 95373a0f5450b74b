// SPDX-License-Identifier: MIT
#include "config/decoder/beta_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dalle2 {
namespace {

// Nichol & Dhariwal 2021, eq. 17, with s = 0.008 and beta at most 0.999.
std::vector<double> cosine(int64_t timesteps) {
  const auto alpha_cumprod = [&](int64_t i) {
    const double phase = (static_cast<double>(i) / static_cast<double>(timesteps) + 0.008) / 1.008;
    return std::pow(std::cos(phase * std::numbers::pi * 0.5), 2);
  };
  std::vector<double> betas;
  for (int64_t i = 0; i < timesteps; ++i) {
    betas.push_back(std::clamp(1 - alpha_cumprod(i + 1) / alpha_cumprod(i), 0.0, 0.999));
  }
  return betas;
}

// `count` values from `low` to `high`; a single one is `low`, as in torch.linspace.
std::vector<double> linspace(double low, double high, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    values.push_back(low + share * (high - low));
  }
  return values;
}

}  // namespace

std::vector<double> beta_schedule_values(BetaSchedule schedule, int64_t timesteps) {
  // The end points of Ho et al. 2020, scaled so that a shorter chain ends in as much noise.
  const double scale = 1000.0 / static_cast<double>(timesteps);
  const double low = scale * 1e-4;
  const double high = scale * 0.02;
  std::vector<double> betas;
  switch (schedule) {
    case BetaSchedule::cosine:
      return cosine(timesteps);
    case BetaSchedule::linear:
      return linspace(low, high, timesteps);
    case BetaSchedule::quadratic:
      betas = linspace(std::sqrt(low), std::sqrt(high), timesteps);
      for (double& beta : betas) beta *= beta;
      return betas;
    case BetaSchedule::sigmoid:
      betas = linspace(-6, 6, timesteps);
      for (double& beta : betas) beta = (high - low) / (1 + std::exp(-beta)) + low;
      return betas;
    case BetaSchedule::jsd:
      for (int64_t i = timesteps; i >= 1; --i) {
        betas.push_back(static_cast<double>(1.0F / static_cast<float>(i)));
      }
      return betas;
  }
  return betas;
}

}  // namespace dalle2
