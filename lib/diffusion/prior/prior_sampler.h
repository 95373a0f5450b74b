// SPDX-License-Identifier: MIT
// DDIM as the diffusion prior walks it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "diffusion/sampler.h"

namespace dalle2 {

/// The times of make_prior_ddim_sampler: (10, 4) gives (7,4) (4,1) (1,-1), one step fewer than
/// asked for, and none at the noisiest times: as in the reference. Needs at least 2 steps.
std::vector<TimePair> prior_ddim_time_pairs(int64_t timesteps, int64_t steps);

/// DDIM with eta 1, whose levels are those of the time before (alphas_cumprod_prev), as in the
/// reference. It ends in the clean embedding.
std::unique_ptr<Sampler> make_prior_ddim_sampler(const NoiseSchedule& schedule, int64_t steps);

}  // namespace dalle2
