// SPDX-License-Identifier: MIT
// Adapters of a decoder's unets.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/lora_file.h"
#include "config/train_config.h"
#include "diffusion/decoder.h"
#include "model/lora.h"
#include "trainer/adapters.h"

namespace dalle2 {

/// Gives every unet that is there and trained the adapters of /train/lora, freezes all else, and
/// holds it as /train/frozen_dtype says. Does nothing with a rank of 0.
/// @return of each unet what decides the dropout of its adapters; null where there are none
/// @throws ConfigError for a target that no unet has, or a unet without any of them
std::vector<std::shared_ptr<LoraDropout>> add_adapters(Decoder& decoder,
                                                       const DecoderTrainConfig& config);

/// Bytes of a module's parameters as they are held: all of them, and those that are trained.
struct ParameterBytes {
  int64_t all = 0, trained = 0;
};
ParameterBytes parameter_bytes(const torch::nn::Module& module);

}  // namespace dalle2
