// SPDX-License-Identifier: MIT
#include "run/model_weights.h"

#include <torch/types.h>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "checkpoint/value_json.h"

namespace dalle2 {
namespace {

const ReadOptions kLenient{
    .overrides = {}, .strict = false, .check_available = false, .no_commands = true};

/// The config of the source: the file given, else the one that the checkpoint carries.
template <class Load, class Parse>
auto config_of(const ModelSource& source, const Cursor& checkpoint, Load load, Parse parse) {
  if (source.config_path) return load(*source.config_path, kLenient);
  const std::optional<Cursor> config = checkpoint.find("config");
  if (!config || config->is_none()) {
    throw ConfigError(
        "{}: this checkpoint carries no config\n  Give the training file it was made with: "
        "--config F.json",
        checkpoint.where());
  }
  return parse(json_of_value(config->value()), config->where(), kLenient);
}

/// The source's weights, with adapters merged into their layers.
StateDict plain_weights(const ModelSource& source, const Cursor& checkpoint, const char* kind) {
  if (!source.use_ema && !has_averages(checkpoint)) {
    throw ConfigError(
        "--no-ema: has no effect on {}, which holds no averages beside its weights (those of a "
        "model file are the averages already)\n  Leave the option away, or name the checkpoint of "
        "the run (checkpoint.pth) for the live weights.",
        checkpoint.where());
  }
  return with_adapters(model_weights(checkpoint, kind, source.use_ema), checkpoint, source.lora);
}

}  // namespace

ParameterCount count_parameters(const torch::nn::Module& module) {
  ParameterCount count;
  for (const at::Tensor& parameter : module.parameters()) {
    count.total += parameter.numel();
    if (parameter.requires_grad()) count.training += parameter.numel();
  }
  return count;
}

ParameterBytes parameter_bytes(const torch::nn::Module& module) {
  ParameterBytes bytes;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto size = static_cast<int64_t>(parameter.nbytes());
    bytes.all += size;
    bytes.trained += parameter.requires_grad() ? size : 0;
  }
  return bytes;
}

std::string checkpoint_kind(const Cursor& checkpoint) {
  const std::optional<Cursor> model =
      checkpoint.value().is_dict() ? checkpoint.find("model") : std::nullopt;
  const Value& names = model ? model->value() : checkpoint.value();
  if (!names.is_dict()) return "";
  for (const auto& [key, value] : names.as_dict().items) {
    if (!key.is_string()) continue;
    const std::string name = key.as_string();
    if (name.starts_with("unets.") || name.starts_with("noise_schedulers.")) return "decoder";
    if (name.starts_with("enc_dec.")) return "vae";
    if (name.starts_with("net.") || name.starts_with("noise_scheduler.")) return "prior";
  }
  return "";
}

void check_kind(const Cursor& checkpoint, const std::string& kind) {
  const std::string found = checkpoint_kind(checkpoint);
  if (found.empty() || found == kind) return;
  throw DataError(
      "{}: expected a checkpoint of a {}, got one of a {}", checkpoint.where(), kind, found);
}

StateDict model_weights(const Cursor& checkpoint, const std::string& kind, bool use_ema) {
  if (use_ema && has_averages(checkpoint)) return averaged_weights(checkpoint);
  if (checkpoint.has("model")) return checkpoint.at("model").as_state_dict();
  if (checkpoint_kind(checkpoint) != kind) {
    throw DataError(
        "{}: no entry \"model\": expected a checkpoint or model file of a {} run\n"
        "  `dalle2-train inspect {}` lists what it holds.",
        checkpoint.where(),
        kind,
        checkpoint.where());
  }
  return checkpoint.as_state_dict();
}

Decoder load_decoder(const ModelSource& source, const Value& checkpoint) {
  const Cursor root(checkpoint, source.checkpoint_path);
  check_kind(root, "decoder");
  const StateDict weights = plain_weights(source, root, "decoder");
  Decoder decoder(config_of(source, root, load_decoder_config, parse_decoder_config).plan);
  // A stage that was not trained has no entries: it is taken out here, too.
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    if (strip_prefix(weights, fmt::format("unets.{}.", unet - 1)).empty()) decoder->drop_unet(unet);
  }
  load_state_dict(*decoder, weights, /*prefix=*/"", /*strict=*/true, source.checkpoint_path);
  decoder->eval();
  return decoder;
}

DiffusionPrior load_prior(const ModelSource& source, const Value& checkpoint) {
  const Cursor root(checkpoint, source.checkpoint_path);
  check_kind(root, "prior");
  const StateDict weights = plain_weights(source, root, "prior");
  DiffusionPrior prior(config_of(source, root, load_prior_config, parse_prior_config).plan);
  load_state_dict(*prior, weights, /*prefix=*/"", /*strict=*/true, source.checkpoint_path);
  prior->eval();
  return prior;
}

VqganVae load_vae(const ModelSource& source, const Value& checkpoint) {
  const Cursor root(checkpoint, source.checkpoint_path);
  check_kind(root, "vae");
  const StateDict weights = plain_weights(source, root, "vae");
  VqganVae vae(config_of(source, root, load_vae_config, parse_vae_config).config.vae);
  load_state_dict(*vae, weights, /*prefix=*/"", /*strict=*/true, source.checkpoint_path);
  vae->eval();
  return vae;
}

}  // namespace dalle2
