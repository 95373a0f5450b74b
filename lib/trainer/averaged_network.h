// SPDX-License-Identifier: MIT
// Averaged networks in a checkpoint.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>

#include "checkpoint/state_dict.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

/// The entries of `network` that are averaged; what is frozen stands in the model already.
StateDict averaged_state(const torch::nn::Module& network, const FlatParameters& averaged);

/// Copies the averages of `saved` (`tensors` are its entries), below `prefix`, into `network`;
/// frozen tensors are those of the original and not part of the average.
/// @throws DataError as load_state_dict() does
void load_averaged_state(torch::nn::Module& network,
                         const FlatParameters& averaged,
                         const StateDict& tensors,
                         const std::string& prefix,
                         bool strict,
                         const Cursor& saved);

/// The entry of the averages. Without one: nothing, and a line in the log that they begin as
/// copies.
std::optional<Cursor> find_averages(const Cursor& root, const char* key);

}  // namespace dalle2
