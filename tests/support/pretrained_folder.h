// SPDX-License-Identifier: MIT
// An average and its model as a folder, as diffusers' EMAModel keeps them: config.json and the
// weights in diffusion_pytorch_model.safetensors. Nothing of the program needs it.
#pragma once

#include <string>

#include "base/error.h"
#include "checkpoint/module_state.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/value_json.h"
#include "io/files/atomic_file.h"
#include "trainer/ema_model_state.h"

namespace dalle2::test {

/// EMAModel.save_pretrained(): a folder with the model's weights, parameters averaged, and a
/// config.json of `model_config` and the scalars of the average.
/// @param model whose parameters, in order, are averaged
/// @throws ConfigError with upstream's text for a null model or a config that is None
inline void save_pretrained(const EmaModel& average,
                            const std::string& folder,
                            const torch::nn::Module* model,
                            const Value& model_config) {
  if (model == nullptr) {
    throw ConfigError("`save_pretrained` can only be used if `model_cls` was defined at __init__.");
  }
  if (!model_config.is_dict()) {
    throw ConfigError(
        "`save_pretrained` can only be used if `model_config` was defined at __init__.");
  }
  Dict config = model_config.as_dict();
  StateDict weights = state_dict(*model);
  for (const auto& [key, value] : ema_model_state(average).items) {
    if (key.as_string() != "shadow_params") {
      config.set(key.as_string(), value);
    }
  }
  const auto parameters = model->named_parameters();
  D2_CHECK(parameters.size() == average.shadow_params().size(),
           "the average is of {} parameters, the model has {}",
           average.shadow_params().size(),
           parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (auto& [name, tensor] : weights) {
      if (name == parameters[i].key()) {
        tensor = average.shadow_params()[i];
      }
    }
  }
  write_safetensors(folder + "/diffusion_pytorch_model.safetensors", weights, {{"format", "pt"}});
  write_file_atomically(folder + "/config.json", json_of_value(config, 2) + "\n");
}

/// EMAModel.from_pretrained(): loads the weights into `model` and makes the average of them.
/// @throws DataError for a folder that does not fit
inline EmaModel ema_model_from_pretrained(const std::string& folder,
                                          torch::nn::Module& model,
                                          bool foreach = false) {
  const std::string path = folder + "/config.json";
  const Value config = value_of_json(read_file(path));
  load_state_dict(model,
                  read_safetensors(folder + "/diffusion_pytorch_model.safetensors").tensors,
                  "",
                  /*strict=*/true,
                  folder);
  EmaModelOptions options;
  options.foreach = foreach;
  EmaModel average(model.parameters(), options);
  load_ema_model_state(Cursor(config, path), average);
  return average;
}

}  // namespace dalle2::test
