// SPDX-License-Identifier: MIT
// A loss scaler in a checkpoint, as torch.amp.GradScaler.state_dict() has it.
#pragma once

#include "checkpoint/state_dict.h"
#include "optim/grad_scaler.h"

namespace dalle2 {

/// {scale, growth_factor, backoff_factor, growth_interval, _growth_tracker}
Dict scaler_state(const GradScaler& scaler);

/// Loads scale and count; the factors stay those of the scaler.
/// @throws DataError unless the scale is finite and not negative and the count is in its range
void load_scaler_state(const Cursor& saved, GradScaler& scaler);

}  // namespace dalle2
