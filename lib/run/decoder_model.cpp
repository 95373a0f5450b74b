// SPDX-License-Identifier: MIT
#include "run/decoder_model.h"

#include <torch/cuda.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora_file.h"
#include "checkpoint/module_state.h"
#include "checkpoint/value_json.h"
#include "io/atomic_file.h"

namespace dalle2 {
namespace {

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

StateDict decoder_weights(const Cursor& checkpoint, bool use_ema) {
  if (use_ema && (checkpoint.has("ema") || checkpoint.has("ema_diffusers")))
    return averaged_weights(checkpoint);
  if (checkpoint.has("model")) return checkpoint.at("model").as_state_dict();
  if (!checkpoint.has("noise_schedulers.0.betas")) {
    throw DataError(
        "{}: no entry \"model\": expected a checkpoint or model file of a decoder run\n"
        "  `dalle2-train inspect {}` lists what it holds.",
        checkpoint.where(),
        checkpoint.where());
  }
  return checkpoint.as_state_dict();
}

Decoder load_decoder(const std::string& checkpoint_path,
                     const std::optional<std::string>& config_path,
                     bool use_ema) {
  const Value checkpoint = read_checkpoint(checkpoint_path);
  const Cursor root(checkpoint, checkpoint_path);
  StateDict model = decoder_weights(root, use_ema);
  if (has_lora(model)) {
    model = merged_lora(model, lora_info_of(root.at("lora")).alpha, checkpoint_path);
  }
  Decoder decoder(plan_of(root, config_path));
  // A stage that was not trained has no entries: it is taken out here, too.
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    if (strip_prefix(model, fmt::format("unets.{}.", unet - 1)).empty()) decoder->drop_unet(unet);
  }
  load_state_dict(*decoder, model, /*prefix=*/"", /*strict=*/true, checkpoint_path);
  decoder->eval();
  return decoder;
}

}  // namespace dalle2
