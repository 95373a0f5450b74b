// SPDX-License-Identifier: MIT
// Adapters of a network, as /train/lora asks for them.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "config/shared/train_options.h"
#include "model/lora.h"

namespace dalle2 {

/// Gives every network the adapters of /train/lora, freezes all else in it, and holds that as
/// /train/frozen_dtype says. Null networks are skipped. Does nothing with a rank of 0.
/// @return for each network, what decides the dropout of its adapters; null where there are none
/// @throws ConfigError for a target that no network has, or a network without any of them
std::vector<std::shared_ptr<DropoutSeed>> add_adapters(
    const std::vector<std::shared_ptr<torch::nn::Module>>& networks, const AdaptersConfig& config);

}  // namespace dalle2
