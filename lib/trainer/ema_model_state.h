// SPDX-License-Identifier: MIT
// Saving and loading of an EmaModel.
#pragma once

#include <vector>

#include "checkpoint/state_dict.h"
#include "optim/ema_model.h"

namespace dalle2 {

/// EMAModel.state_dict(): the same keys, order and types. Tensors are the live ones.
Dict ema_model_state(const EmaModel& average);
/// The same with these averages, of whole parameters, where `average` has only pieces of them.
Dict ema_model_state(const EmaModel& average, const std::vector<at::Tensor>& shadows);

/// EMAModel.load_state_dict(): what is missing keeps its value, tensors are copied.
/// @throws DataError with upstream's text for a value out of range or of another type, and for
/// averages whose number or shapes are not those of the parameters; the average is then as it was
/// (differs from upstream, which keeps what it had read before the fault)
void load_ema_model_state(const Cursor& saved, EmaModel& average);

}  // namespace dalle2
