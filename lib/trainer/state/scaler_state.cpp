// SPDX-License-Identifier: MIT
#include "trainer/state/scaler_state.h"

#include <cmath>

#include "base/error.h"

namespace dalle2 {

Dict scaler_state(const GradScaler& scaler) {
  const GradScalerOptions& options = scaler.options();
  Dict state;
  state.set("scale", scaler.current_scale());
  state.set("growth_factor", options.growth_factor);
  state.set("backoff_factor", options.backoff_factor);
  state.set("growth_interval", options.growth_interval);
  state.set("_growth_tracker", scaler.growth_tracker());
  return state;
}

void load_scaler_state(const Cursor& saved, GradScaler& scaler) {
  const Cursor scale = saved.at("scale");
  const Cursor tracker = saved.at("_growth_tracker");
  if (!std::isfinite(scale.as_double()) || scale.as_double() < 0) {
    throw DataError("{}: expected a loss scale, a finite number >= 0, got {}",
                    scale.where(),
                    scale.as_double());
  }
  const int64_t interval = scaler.options().growth_interval;
  if (tracker.as_int() < 0 || tracker.as_int() >= interval) {
    throw DataError("{}: expected a count of updates from 0 to {}, got {}",
                    tracker.where(),
                    interval - 1,
                    tracker.as_int());
  }
  scaler.set_state(scale.as_double(), tracker.as_int());
}

}  // namespace dalle2
