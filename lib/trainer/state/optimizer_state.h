// SPDX-License-Identifier: MIT
// Optimizer and schedule in the form of torch.optim's state dicts.
#pragma once

#include "checkpoint/state_dict.h"
#include "trainer/trained_part.h"

namespace dalle2 {

/// {state: {index: {step, exp_avg, exp_avg_sq}}, param_groups: [...]} as Adam or AdamW writes it
/// after `steps` updates. Tensors are views of the moments.
/// @param moments of all parameters: Optimizer::moments() unless they are spread over ranks
Dict optimizer_state(const TrainedPart& part, const FlatMoments& moments, int64_t steps);

/// State of LambdaLR with a constant factor, or of CosineAnnealingLR.
Dict schedule_state(const LrSchedule& schedule, size_t num_groups, int64_t steps);

/// Copies moments and step counts in. Rates and decays stay this run's own.
/// @param mention whether a rate or decay that differs from the checkpoint's is mentioned in the
/// log
/// @throws DataError if groups, indices or shapes are those of another network or grouping
void load_optimizer_state(const Cursor& checkpoint, TrainedPart& part, bool mention);

/// A loss scaler, as torch.amp.GradScaler.state_dict() has it: {scale, growth_factor, backoff_factor, growth_interval, _growth_tracker}
Dict scaler_state(const GradScaler& scaler);

/// Loads scale and count; the factors stay those of the scaler.
/// @throws DataError unless the scale is finite and not negative and the count is in its range
void load_scaler_state(const Cursor& saved, GradScaler& scaler);

}  // namespace dalle2
