// SPDX-License-Identifier: MIT
#include "optim/grad_scaler.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {

GradScaler::GradScaler(const at::Device& device, const GradScalerOptions& options)
    : options_(options),
      scale_(at::full({}, options.init_scale, at::device(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::device(device).dtype(at::kInt))) {
  D2_CHECK(
      options.growth_factor > 1.0 && options.backoff_factor < 1.0 && options.growth_interval >= 1,
      "a loss scale that grows by {} every {} updates and falls by {}",
      options.growth_factor,
      options.growth_interval,
      options.backoff_factor);
}

void GradScaler::update(const at::Tensor& found_inf) {
  const torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_,
                         growth_tracker_,
                         found_inf,
                         options_.growth_factor,
                         options_.backoff_factor,
                         options_.growth_interval);
}

double GradScaler::current_scale() const {
  return scale_.item<double>();
}

int64_t GradScaler::growth_tracker() const {
  return growth_tracker_.item<int64_t>();
}

void GradScaler::set_state(double scale, int64_t growth_tracker) {
  const torch::NoGradGuard no_grad;
  scale_.fill_(scale);
  growth_tracker_.fill_(growth_tracker);
}

}  // namespace dalle2
