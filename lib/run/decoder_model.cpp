// SPDX-License-Identifier: MIT
#include "run/decoder_model.h"

#include <torch/cuda.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pth.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/value_json.h"
#include "io/atomic_file.h"

namespace dalle2 {
namespace {

/// The unets' averages, `<i>.ema_model.<name>`, under the names of the unets, `unets.<i>.<name>`.
void replace_by_averages(StateDict& model, const StateDict& averages) {
  constexpr std::string_view kMiddle = ".ema_model.";
  for (const auto& [name, average] : averages) {
    const size_t middle = name.find(kMiddle);
    if (middle == std::string::npos) continue;
    const std::string target =
        "unets." + name.substr(0, middle) + "." + name.substr(middle + kMiddle.size());
    for (auto& [model_name, tensor] : model) {
      if (model_name == target) tensor = average;
    }
  }
}

DecoderPlan plan_of(const Cursor& checkpoint, const std::optional<std::string>& config_path) {
  const ReadOptions lenient{.overrides = {}, .strict = false, .check_available = false};
  if (config_path) return load_decoder_config(*config_path, lenient).plan;
  const std::optional<Cursor> config = checkpoint.find("config");
  if (!config || config->is_none()) {
    throw ConfigError(
        "{}: this checkpoint carries no config\n  Give the training file it was made with: "
        "--config F.json",
        checkpoint.where());
  }
  return parse_decoder_config(json_of_value(config->value()), config->where(), lenient).plan;
}

}  // namespace

at::Device choose_device(const std::string& name, const std::string& pointer, bool allow_fallback) {
  if (name == "cpu") return at::kCPU;
  if (name != "cuda" && name.rfind("cuda:", 0) != 0) {
    throw ConfigError("{}: expected \"cpu\", \"cuda\" or \"cuda:N\", got \"{}\"", pointer, name);
  }
  if (torch::cuda::is_available()) return at::Device(name);
  if (!allow_fallback) {
    throw ConfigError(
        "{}: \"{}\" was asked for, but no usable GPU was found (driver, or a build without CUDA)",
        pointer,
        name);
  }
  log_info("train", "no usable GPU: running on the CPU ({} says \"{}\")", pointer, name);
  return at::kCPU;
}

ParameterCount count_parameters(const torch::nn::Module& module) {
  ParameterCount count;
  for (const at::Tensor& parameter : module.parameters()) {
    count.total += parameter.numel();
    if (parameter.requires_grad()) count.training += parameter.numel();
  }
  return count;
}

Decoder load_decoder(const std::string& checkpoint_path,
                     const std::optional<std::string>& config_path,
                     bool use_ema) {
  const Value checkpoint = read_pth(checkpoint_path);
  const Cursor root(checkpoint, checkpoint_path);
  if (!root.has("model")) {
    throw DataError(
        "{}: no entry \"model\": expected a checkpoint or model file of a decoder run\n"
        "  `dalle2-train inspect {}` lists what it holds.",
        checkpoint_path,
        checkpoint_path);
  }
  Decoder decoder(plan_of(root, config_path));
  StateDict model = root.at("model").as_state_dict();
  if (use_ema) {
    if (const std::optional<Cursor> averages = root.find("ema"))
      replace_by_averages(model, averages->as_state_dict());
  }
  // A stage that was not trained has no entries: it is taken out here, too.
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    if (strip_prefix(model, fmt::format("unets.{}.", unet - 1)).empty()) decoder->drop_unet(unet);
  }
  load_state_dict(*decoder, model, /*prefix=*/"", /*strict=*/true, checkpoint_path);
  decoder->eval();
  return decoder;
}

}  // namespace dalle2
