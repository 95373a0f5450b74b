// SPDX-License-Identifier: MIT
// Saving and loading of the averages of a decoder's unets: seen by the trainer's own source files
// only.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/state_dict.h"
#include "trainer/decoder_trainer_state.h"

namespace dalle2 {

/// A ModuleList of ema_pytorch.EMA; an untrained stage has only the counters, and one with adapters
/// only what is trained. Tensors are the live ones, here and below.
Dict ema_pytorch_state(const TrainedUnets& unets);
/// @param saved none: the averages begin anew, as copies of the weights
/// @param strict missing or unexpected keys are an error; else a warning
/// @throws DataError naming what does not fit
void load_ema_pytorch_state(const std::optional<Cursor>& saved, bool strict, TrainedUnets& unets);

/// A list of EMAModel.state_dict(); None for an untrained stage.
List diffusers_averages_state(const TrainedUnets& unets);
/// @param saved none, or None for a unet: its averages begin anew
void load_diffusers_averages_state(const std::optional<Cursor>& saved, TrainedUnets& unets);

/// One entry a unet, None for one without; nothing where no unet has any.
std::optional<List> post_hoc_averages_state(const TrainedUnets& unets);
/// @param saved none, or None for a unet: its averages begin anew
void load_post_hoc_averages_state(const std::optional<Cursor>& saved, TrainedUnets& unets);
/// True for the decoder's tensor `name` ("unets.0.init_conv.bias") if its unet averages it.
bool has_post_hoc_average(const std::string& name, const TrainedUnets& unets);

}  // namespace dalle2
