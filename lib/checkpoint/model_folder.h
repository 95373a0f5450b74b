// SPDX-License-Identifier: MIT
// A model as a folder, as diffusers' save_pretrained() writes it: config.json and the weights in
// diffusion_pytorch_model.safetensors.
#pragma once

#include "checkpoint/state_dict.h"

#include <string>

namespace dalle2 {

struct ModelFolder {
  Dict config;
  StateDict weights;
};

/// Writes each file whole or not at all; makes the folder if it is missing.
void write_model_folder(const std::string& folder, const ModelFolder& model);

/// @throws DataError naming the file that is missing, damaged or not a JSON object
ModelFolder read_model_folder(const std::string& folder);

}  // namespace dalle2
