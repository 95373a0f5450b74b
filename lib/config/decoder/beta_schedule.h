// SPDX-License-Identifier: MIT
// The five noise schedules of the reference, torch-free so that a config can
// be checked.
#pragma once

#include <cstdint>
#include <vector>

#include "config/reading/types.h"

namespace dalle2 {

/// beta_t for t = 0 .. timesteps-1. jsd holds the values as the reference's float32 has them.
std::vector<double> beta_schedule_values(BetaSchedule schedule, int64_t timesteps);

}  // namespace dalle2
