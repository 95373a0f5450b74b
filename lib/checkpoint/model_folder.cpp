// SPDX-License-Identifier: MIT
#include "checkpoint/model_folder.h"

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/value_json.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

std::string config_path(const std::string& folder) {
  return folder + "/config.json";
}

std::string weights_path(const std::string& folder) {
  return folder + "/diffusion_pytorch_model.safetensors";
}

}  // namespace

void write_model_folder(const std::string& folder, const ModelFolder& model) {
  // The weights first: whoever finds a config finds weights too.
  write_safetensors(weights_path(folder), model.weights, {{"format", "pt"}});
  write_file_atomically(config_path(folder), json_of_value(model.config, 2) + "\n");
}

ModelFolder read_model_folder(const std::string& folder) {
  const std::string path = config_path(folder);
  Value config = value_of_json(read_file(path));
  if (!config.is_dict()) {
    throw DataError("{}: expected a JSON object, got {}", path, describe(config));
  }
  return {config.as_dict(), read_safetensors(weights_path(folder)).tensors};
}

}  // namespace dalle2
