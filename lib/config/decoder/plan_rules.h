// SPDX-License-Identifier: MIT
// The rules that plan_decoder applies to each stage.
#pragma once

#include <fmt/format.h>

#include <string>

#include "config/decoder/decoder_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/reading/faults.h"
#include "config/shared/train_rules.h"

namespace dalle2 {

/// As plan_decoder, but adds what is wrong to `faults` and returns what could be made of it.
DecoderPlan plan_decoder(const DecoderConfig& config, Faults& faults);

/// Puts what `train` asks of the losses into the stages that are trained, and refuses what their
/// objectives and loss weights do not allow. `train` and `plan` have no faults of their own.
void plan_losses(const DecoderTrainConfig& train, DecoderPlan& plan, Faults& faults);

/// How messages name a unet, by its index from 0.
inline NetworkName network_name(size_t index) {
  return {fmt::format("unet {}", index + 1), "decoder", "image"};
}

/// Halvings of the image between the input of the unet and its middle.
int64_t halvings(const UnetConfig& unet);

/// Widths, groups, kernels and array lengths of a unet whose plain limits hold.
void check_unet_shape(const UnetConfig& unet, const std::string& pointer, Faults& faults);

/// Refuses schedules in which a beta reaches 1 where the maths of this stage would turn into NaN,
/// and zero terminal SNR for a unet that predicts the noise.
void check_noise_schedule(const UnetPlan& stage,
                          size_t index,
                          bool zero_terminal_snr,
                          Faults& faults);

}  // namespace dalle2
