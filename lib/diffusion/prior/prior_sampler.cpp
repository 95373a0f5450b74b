// SPDX-License-Identifier: MIT
#include "diffusion/prior/prior_sampler.h"

#include <torch/torch.h>

#include "base/error.h"
#include "diffusion/sampler.h"

namespace dalle2 {
namespace {

constexpr float kEta = 1.0F;

class PriorDdimSampler final : public Sampler {
 public:
  PriorDdimSampler(NoiseSchedule schedule, int64_t steps)
      : schedule_(std::move(schedule)),
        acp_prev_(schedule_->alphas_cumprod_prev.cpu().contiguous()),
        steps_(steps) {}

  std::vector<TimePair> time_pairs() const override {
    return prior_ddim_time_pairs(schedule_->timesteps(), steps_);
  }

  at::Tensor step(const at::Tensor& x,
                  const at::Tensor& times,
                  const TimePair& pair,
                  const Denoised& denoised,
                  const NoiseSource& noise) override {
    if (pair.next < 0) return denoised.x_start;
    const DdimLevels levels = {level(pair.time), level(pair.next), kEta};
    return ddim_step(
        *schedule_, x, times, denoised.x_start, levels, pair.next > 0 ? &noise : nullptr);
  }

 private:
  float level(int64_t time) const { return acp_prev_[time].item<float>(); }

  NoiseSchedule schedule_;
  at::Tensor acp_prev_;  // [T], on the host
  int64_t steps_;
};

}  // namespace

std::vector<TimePair> prior_ddim_time_pairs(int64_t timesteps, int64_t steps) {
  D2_CHECK(steps >= 2, "a DDIM walk of {} steps", steps);
  // The grid's rounding decides which integers it hits, so it is the reference's: fp32, truncated.
  const at::Tensor grid =
      at::linspace(-1, static_cast<double>(timesteps), steps + 1, at::kFloat).to(at::kLong);
  std::vector<TimePair> pairs;
  for (int64_t i = steps - 1; i > 0; --i) {
    pairs.push_back({grid[i].item<int64_t>(), grid[i - 1].item<int64_t>()});
  }
  return pairs;
}

std::unique_ptr<Sampler> make_prior_ddim_sampler(const NoiseSchedule& schedule, int64_t steps) {
  return std::make_unique<PriorDdimSampler>(schedule, steps);
}

}  // namespace dalle2
