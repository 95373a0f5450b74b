// SPDX-License-Identifier: MIT
// From files to a decoder with weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/run_config.h"
#include "diffusion/decoder.h"

namespace dalle2 {

/// "cpu", "cuda" or "cuda:N". Without a usable GPU "cuda" falls back to the CPU with a notice if
/// `allow_fallback`. @throws ConfigError for another name, or for cuda without a GPU and fall-back
at::Device choose_device(const std::string& name, const std::string& pointer, bool allow_fallback);

/// Counts of a module's parameters: all, and those that are trained.
struct ParameterCount {
  int64_t total = 0, training = 0;
};
ParameterCount count_parameters(const torch::nn::Module& module);

/// The decoder's tensors in a checkpoint, in a model file, or in a bare state dict.
/// @param use_ema averaged weights where the file has them
/// @throws DataError
StateDict decoder_weights(const Cursor& checkpoint, bool use_ema);

/// A decoder with the weights of a checkpoint (`save_type` checkpoint or model, ours or the
/// reference's); adapters are merged into their layers.
/// @param config_path a training file, for a checkpoint without config
/// @param use_ema averaged weights where the file has them
/// @throws DataError (unreadable, keys that do not fit), ConfigError (no config anywhere)
Decoder load_decoder(const std::string& checkpoint_path,
                     const std::optional<std::string>& config_path,
                     bool use_ema);

}  // namespace dalle2
