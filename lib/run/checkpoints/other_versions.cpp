// SPDX-License-Identifier: MIT
#include "run/checkpoints/other_versions.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/file_version.h"
#include "checkpoint/pickle/value_json.h"
#include "config/shared/old_configs.h"
#include "model/clip/clip_encoder.h"
#include "run/checkpoints/model_weights.h"

namespace dalle2 {
namespace {

[[noreturn]] void refuse(const std::string& in, const Version& version, const std::string& why) {
  throw ConfigError(
      "{}: weights of dalle2-pytorch {} have no equal in {}: {}\n  They can be drawn with and trained on "
      "as they are.",
      in,
      to_text(version),
      to_text(kLastVersion),
      why);
}

bool any_name(const StateDict& weights, const std::string& part) {
  return std::any_of(weights.begin(), weights.end(), [&](const auto& entry) {
    return entry.first.find(part) != std::string::npos;
  });
}

bool replace_part(std::string& name, const std::string& part, const std::string& by) {
  const size_t at = name.find(part);
  if (at != std::string::npos) name.replace(at, part.size(), by);
  return at != std::string::npos;
}

void decoder_to_last(StateDict& weights, Json& decoder, const Version& v, const std::string& in) {
  const UnetLayout layout = layout_of(v).unet;
  Json& unets = decoder.at("unets");
  if (v < Version{0, 23, 3}) {
    refuse(in, v, "norms, upsampling or the order of the layers were others until 0.23.2");
  }
  if (!layout.unit_values && any_name(weights, ".fn.to_qkv.")) {
    refuse(in, v, "linear attention did not normalise its values until 1.2.2 (sparse_attn)");
  }
  if (unets.size() > 1 && !layout_of(v).decoder_loop.nearest) {
    refuse(in, v, "upper unets saw another enlargement of the low-resolution picture until 0.23.9");
  }
  for (auto& [name, tensor] : weights) {
    replace_part(name, ".cross_attn.fn.", ".cross_attn.");
    // A convolution of one kernel size is a cross embedding of one.
    const bool is_down = name.find(".downs.") != std::string::npos && tensor.dim() == 4 &&
                         tensor.size(2) == 4 && name.find(".convs.") == std::string::npos;
    if (layout.strided_down && is_down) {
      const std::string bias = name.substr(0, name.size() - 6) + "bias";
      for (auto& other : weights) {
        if (other.first == bias) replace_part(other.first, ".bias", ".convs.0.bias");
      }
      replace_part(name, ".weight", ".convs.0.weight");
    }
    if (!layout.twice_scaled && name.ends_with(".fn.fn.to_q.weight")) {
      const at::Tensor* const null_kv =
          find_tensor(weights, name.substr(0, name.size() - 11) + "null_kv");
      if (null_kv != nullptr) tensor = tensor * std::sqrt(static_cast<double>(null_kv->size(1)));
    }
    if (!layout.lowres_at_end && name.ends_with(".to_out.weight") &&
        !name.starts_with("unets.0.")) {
      tensor = at::constant_pad_nd(tensor, {0, 0, 0, 0, 0, decoder.value("channels", int64_t{3})});
    }
  }
  for (Json& unet : unets) {
    if (!layout.strided_down || unet.value("cross_embed_downsample", false)) continue;
    unet["cross_embed_downsample"] = true;
    unet["cross_embed_downsample_kernel_sizes"] = Json::array({4});
  }
}

void prior_to_last(StateDict& weights, Json& prior, const Version& v, const std::string& in) {
  const PriorLayout layout = layout_of(v).prior;
  Json& net = prior.at("net");
  if (!layout.cosine_attention) refuse(in, v, "attention was by dot products until 1.4.2");
  if (!layout.query_of_self_cond && net.value("self_cond", false)) {
    refuse(in, v, "the tokens of self_cond stood in another order until 1.12.0");
  }
  if (layout.truncated_times && any_name(weights, "net.to_time_embeds.0.1.")) {
    refuse(in, v, "sines and cosines of the times were truncated until 1.10.7");
  }
  if (layout.nulls == PriorLayout::Nulls::encodings) {
    for (auto& entry : weights)
      replace_part(entry.first, ".null_text_embed", ".null_text_encodings");
    const int64_t dim = net.at("dim");
    weights.emplace_back("net.null_text_embeds",
                         at::zeros({1, net.value("num_text_embeds", int64_t{1}), dim}));
    weights.emplace_back("net.null_image_embed", at::zeros({1, dim}));
  }
  if (layout.drops_text_embeds) return;
  for (const char* key : {"cond_drop_prob", "text_cond_drop_prob", "image_cond_drop_prob"}) {
    prior[key] = 0.0;
  }
  log_info(
      "ckpt", "{}: guidance meant something else in {}: cond_drop_prob becomes 0", in, to_text(v));
}

/// A file's own config with all values, of a given one the section of the model; null if there is none.
Json config_for(const ConfigText& text, const std::string& kind, const Version& version) {
  if (text.json.empty()) return {};
  ReadOptions options = with_checkpoints(
      {.overrides = {}, .strict = false, .check_available = false, .no_commands = true});
  if (version != kLastVersion) options.written_by = to_text(version);
  options.part = text.is_file ? ConfigPart::model : ConfigPart::stored;
  Json config = Json::parse(config_kind_of(kind).fill_in(text.json, options));
  if (!text.is_file && Json::parse(text.json).contains("data")) return config;
  Json model = {{kind, config.at(kind)}};
  if (names_version(config)) model["written_by"] = config["written_by"];
  return model;
}

}  // namespace

Dict described_checkpoint(const Value& checkpoint,
                          const std::string& in,
                          const DescribedFile& how) {
  const Cursor root(checkpoint, in);
  const std::string kind = checkpoint_kind(root);
  if (kind != "decoder" && kind != "prior") {
    throw ConfigError(
        "{}: --config, --written-by and --to are for a decoder or a prior, and this is {}",
        in,
        kind.empty() ? "neither" : "a " + kind);
  }
  const bool only_weights = how.averaged || how.to_last_version;
  StateDict weights = model_weights(root, kind, only_weights);
  const ModelSource source = {
      .checkpoint_path = in, .config_path = how.config_path, .written_by = how.written_by};
  const ConfigText text = config_text(source, root);
  Version version = version_of_file(root, weights, kind, told_version(source, text));
  Json config = config_for(text, kind, version);
  if (how.to_last_version) {
    if (has_lora(root)) {
      throw DataError(
          "{}: holds adapters, which are for the weights of their version\n  Make plain weights of it "
          "first: dalle2-train convert --merge-lora IN OUT",
          in);
    }
    if (config.is_null()) throw ConfigError("{}: has no config\n  Give it: --config F.json", in);
    std::erase_if(weights, [](const auto& item) { return is_of_frozen_clip(item.first); });
    if (kind == "decoder")
      decoder_to_last(weights, config.at(kind), version, in);
    else
      prior_to_last(weights, config.at(kind), version, in);
    version = kLastVersion;
    config["written_by"] = nullptr;
  }
  Dict out;
  if (only_weights)
    out = with_entries(weights, root, {"lora"});
  else if (root.has("model"))
    out = root.as_dict();
  else
    out.set("model", to_dict(weights));
  out.set("version", to_text(version));
  if (!config.is_null()) out.set("config", value_of_json(config.dump()));
  return out;
}

}  // namespace dalle2
