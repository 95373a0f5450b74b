// SPDX-License-Identifier: MIT
// Adapters of a network, as /train/lora asks for them.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "checkpoint/lora_file.h"
#include "config/lora_config.h"
#include "model/lora.h"

namespace dalle2 {

/// Gives `network` the adapters, freezes all else, and holds it as `frozen` says. The targets have
/// been checked (check_lora_targets).
/// @return what decides the dropout of the adapters
std::shared_ptr<LoraDropout> add_adapters(torch::nn::Module& network,
                                          const LoraConfig& config,
                                          FrozenDtype frozen,
                                          TrainableDtype trainable);

/// What files say of the adapters of a run.
LoraInfo lora_info(const LoraConfig& config);

}  // namespace dalle2
