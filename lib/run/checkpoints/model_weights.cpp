// SPDX-License-Identifier: MIT
#include "run/checkpoints/model_weights.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/value_json.h"
#include "config/shared/old_configs.h"
#include "io/files/folder_names.h"
#include "net/digest.h"
#include "run/checkpoints/clip_weights.h"
#include "run/kinds.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

/// Where the trainers of others, open_clip's among them, keep a state dict.
constexpr const char* kForeignModel = "state_dict";

ReadOptions lenient() {
  return with_checkpoints(
      {.overrides = {}, .strict = false, .check_available = false, .no_commands = true});
}

void check_vae_kind(const StateDict& weights, VaeKind kind, const std::string& path) {
  const bool is_muse = kind == VaeKind::muse;
  if (strip_prefix(weights, is_muse ? "vq." : "quantizer.").empty()) return;
  throw DataError(
      "{}: expected the weights of a VAE of the kind {}, got those of the kind {}\n  Set the "
      "VAE's \"kind\" to that of the file, or name another file.",
      printable(path),
      is_muse ? "muse" : "dalle2",
      is_muse ? "dalle2" : "muse");
}

std::string config_of_checkpoint(const std::string& kind, const std::string& path) {
  if (!path_exists(path)) throw ConfigError("{}: no such file", printable(path));
  const Value checkpoint = read_checkpoint(path);
  const Cursor root(checkpoint, path);
  check_kind(root, kind);
  const std::optional<Cursor> config = root.find("config");
  if (!config || config->is_none()) {
    throw ConfigError(
        "{}: this file has no config: give the `{}` section that it was trained with as \"model\" "
        "beside \"checkpoint\"",
        printable(path),
        kind);
  }
  return json_of_value(config->value());
}

void check_meaning(const ModelSource& source,
                   const Cursor& checkpoint,
                   const std::string& kind,
                   const std::string& full_json,
                   bool is_allowed) {
  const std::vector<std::string> changes = model_changes(checkpoint, kind, full_json);
  if (changes.empty()) return;
  const std::string text = fmt::format("{}: the config {} gives its weights another meaning:\n  {}",
                                       checkpoint.where(),
                                       *source.config_path,
                                       fmt::join(changes, "\n  "));
  if (!is_allowed) {
    throw ConfigError(
        "{}\n  Give the values it was trained with, or set /train/allow_changed_config to true if "
        "that is what you want.",
        text);
  }
  log_warning("ckpt", "{}\n  (/train/allow_changed_config)", text);
}

/// The config of a source as it is written: the file given, else the one that the checkpoint carries; empty:
/// there is neither.
struct ConfigText {
  std::string json, where;
  bool is_file = false;  ///< given
};

/// Reads the file, which may be a pipe or an address: once.
ConfigText config_text(const ModelSource& source, const Cursor& checkpoint) {
  if (source.config_path) {
    const FetchedFile file(*source.config_path);
    return {read_config_file(file.path()), *source.config_path, true};
  }
  const std::optional<Cursor> own = checkpoint.find("config");
  if (!own || own->is_none()) return {};
  return {json_of_value(own->value()), own->where()};
}

/// What the user, or the config, says of the version of the weights. @throws ConfigError if they contradict each other
ToldVersion told_version(const ModelSource& source, const ConfigText& config) {
  const ToldVersion of_option{source.written_by, source.version_option};
  if (config.json.empty()) return of_option;
  Faults ignored;
  const Json root = parse_root(config.json, config.where, ignored);
  const std::optional<Version> version = written_by(root, config.where);
  if (!version) return of_option;
  const std::string key = config.where + ": /written_by";
  if (!source.written_by.empty() &&
      parse_version(source.written_by, source.version_option) != *version) {
    throw ConfigError(
        "{} is {}, and {} is {}\n  {}",
        source.version_option,
        source.written_by,
        key,
        to_text(*version),
        config.is_file ? "Leave the wrong one out."
                       : "Leave the option out, or give the right config: " + source.config_option);
  }
  return {to_text(*version), key};
}

/// @tparam parse reads a kind's config: (json, origin, options)
/// @param written_by the version of the weights; "": the last one
template <auto parse>
auto config_of(const ModelSource& source,
               const Cursor& checkpoint,
               const ConfigText& text,
               const std::string& written_by) {
  ReadOptions options = lenient();
  options.written_by = written_by;
  options.part = ConfigPart::model;
  if (text.is_file) {
    options.overrides = source.overrides;
    auto loaded = parse(text.json, text.where, options);
    check_meaning(source,
                  checkpoint,
                  loaded.config.kKind,
                  loaded.full_json,
                  source.allow_changed_config || loaded.config.train.allow_changed_config);
    return loaded;
  }
  if (text.json.empty()) {
    throw ConfigError("{}: this checkpoint has no config\n  Give the config it was made with: {}",
                      checkpoint.where(),
                      source.config_option);
  }
  return parse(text.json, text.where, options);
}

/// The source's weights, with adapters merged into their layers.
StateDict plain_weights(const ModelSource& source,
                        const Cursor& checkpoint,
                        const std::string& kind) {
  if (!source.use_ema && !has_averages(checkpoint)) {
    throw ConfigError(
        "{}: has no effect on {}, which holds no averages (the weights of a model file are "
        "already the averages)\n  Leave the option out, or name the checkpoint of the run "
        "(checkpoint.pth) for the live weights.",
        source.live_option,
        checkpoint.where());
  }
  return with_adapters(model_weights(checkpoint, kind, source.use_ema), checkpoint, source.lora);
}

/// @param make the model of a loaded config that fits these weights: (loaded, weights)
template <auto parse, class Make>
auto load_model(const ModelSource& source, const Value& checkpoint, const Make& make) {
  const Cursor root(checkpoint, source.checkpoint_path);
  const std::string kind = decltype(parse({}, {}, {}).config)::kKind;
  check_kind(root, kind);
  StateDict weights = plain_weights(source, root, kind);
  // The CLIP that made the embeddings of a training has no part in what the model draws.
  const size_t of_clip =
      std::erase_if(weights, [](const auto& item) { return is_of_frozen_clip(item.first); });
  if (of_clip > 0)
    log_info("ckpt", "{}: {} tensors of a CLIP are left out", source.checkpoint_path, of_clip);
  const ConfigText text = config_text(source, root);
  Version version = kLastVersion;
  if constexpr (requires { decltype(parse({}, {}, {}).config)::written_by; })
    version = version_of_file(root, weights, kind, told_version(source, text));
  const bool is_old = version != kLastVersion;
  auto model = make(config_of<parse>(source, root, text, is_old ? to_text(version) : ""), weights);
  if (is_old) {
    log_info("ckpt",
             "{}: a {} of dalle2-pytorch {} (networks of {})",
             source.checkpoint_path,
             kind,
             to_text(version),
             to_text(same_network(kind, version)));
  }
  load_state_dict(*model, weights, /*prefix=*/"", /*strict=*/true, source.checkpoint_path);
  model->eval();
  return model;
}

/// @param reasons each with whether it holds @throws ConfigError for the first that does
void refuse_for(const std::string& in,
                const Version& version,
                const std::vector<std::pair<bool, const char*>>& reasons) {
  for (const auto& [holds, why] : reasons) {
    if (!holds) continue;
    throw ConfigError(
        "{}: weights of dalle2-pytorch {} have no equal in {}: {}\n  They can be drawn with and trained "
        "on as they are.",
        in,
        to_text(version),
        to_text(kLastVersion),
        why);
  }
}

bool any_name(const StateDict& weights, const std::string& part) {
  return std::ranges::any_of(
      weights, [&](const auto& entry) { return entry.first.find(part) != std::string::npos; });
}

void decoder_to_last(StateDict& weights, Json& decoder, const Version& v, const std::string& in) {
  const UnetLayout layout = {v};
  Json& unets = decoder.at("unets");
  refuse_for(in,
             v,
             {{v < Version{0, 23, 3},
               "norms, upsampling or the order of the layers were others until 0.23.2"},
              {!layout.unit_values && any_name(weights, ".fn.to_qkv."),
               "linear attention did not normalise its values until 1.2.2 (sparse_attn)"},
              {unets.size() > 1 && !DecoderLoopLayout{v}.nearest,
               "upper unets saw another enlargement of the low-resolution picture until 0.23.9"}});
  for (auto& [name, tensor] : weights) {
    name = replaced(name, ".cross_attn.fn.", ".cross_attn.");
    // A convolution of one kernel size is a cross embedding of one.
    const bool is_down = name.find(".downs.") != std::string::npos && tensor.dim() == 4 &&
                         tensor.size(2) == 4 && name.find(".convs.") == std::string::npos;
    if (layout.strided_down && is_down) {
      const std::string bias = name.substr(0, name.size() - 6) + "bias";
      for (auto& other : weights) {
        if (other.first == bias) other.first = replaced(bias, ".bias", ".convs.0.bias");
      }
      name = replaced(name, ".weight", ".convs.0.weight");
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
  const PriorLayout layout = {v};
  Json& net = prior.at("net");
  refuse_for(in,
             v,
             {{!layout.cosine_attention, "attention was by dot products until 1.4.2"},
              {!layout.query_of_self_cond && net.value("self_cond", false),
               "the tokens of self_cond stood in another order until 1.12.0"},
              {layout.truncated_times && any_name(weights, "net.to_time_embeds.0.1."),
               "sines and cosines of the times were truncated until 1.10.7"}});
  if (layout.nulls == PriorLayout::Nulls::encodings) {
    for (auto& entry : weights)
      entry.first = replaced(entry.first, ".null_text_embed", ".null_text_encodings");
    const int64_t dim = net.at("dim");
    weights.emplace_back("net.null_text_embeds",
                         at::zeros({1, net.value("num_text_embeds", int64_t{1}), dim}));
    weights.emplace_back("net.null_image_embed", at::zeros({1, dim}));
  }
  if (layout.drops_text_embeds) return;
  for (const char* key : {"cond_drop_prob", "text_cond_drop_prob", "image_cond_drop_prob"})
    prior[key] = 0.0;
  log_info(
      "ckpt", "{}: guidance meant something else in {}: cond_drop_prob becomes 0", in, to_text(v));
}

/// A file's own config with all values, of a given one the section of the model; null if there is none.
Json config_for(const ConfigText& text, const std::string& kind, const Version& version) {
  if (text.json.empty()) return {};
  ReadOptions options = lenient();
  if (version != kLastVersion) options.written_by = to_text(version);
  options.part = text.is_file ? ConfigPart::model : ConfigPart::stored;
  Json config = Json::parse(config_kind_of(kind).fill_in(text.json, text.where, options));
  if (!text.is_file && Json::parse(text.json).contains("data")) return config;
  Json model = {{kind, config.at(kind)}};
  if (names_version(config)) model["written_by"] = config["written_by"];
  return model;
}

}  // namespace

std::string stored_config(const Cursor& checkpoint) {
  const std::string json = json_of_value(checkpoint.at("config").value());
  const std::optional<Version> version = said_version(checkpoint);
  Json config = Json::parse(json);
  if (version.value_or(kLastVersion) == kLastVersion || names_version(config)) return json;
  config["written_by"] = to_text(*version);
  const std::string kind = config.contains("prior") ? "prior" : "decoder";
  complete_old_config(config, kind, checkpoint.where());
  return config.dump();
}

ConfigChanges changes_since(const Cursor& checkpoint, const std::string& full_json) {
  const std::optional<Cursor> saved = checkpoint.find("config");
  if (!saved || !saved->value().is_dict()) return {};
  // What the reference stored may hold secrets.
  return compare_for_resume(public_config(stored_config(checkpoint)), full_json);
}

std::vector<std::string> model_changes(const Cursor& checkpoint,
                                       const std::string& kind,
                                       const std::string& full_json) {
  ConfigChanges changes = changes_since(checkpoint, full_json);
  std::erase_if(changes.meaning,
                [&](const std::string& line) { return !line.starts_with("/" + kind); });
  return std::move(changes.meaning);
}

ParameterCount count_parameters(const torch::nn::Module& module) {
  ParameterCount count;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    count.total += parameter.numel();
    count.bytes += bytes;
    if (!parameter.requires_grad()) continue;
    count.training += parameter.numel();
    count.trained_bytes += bytes;
  }
  return count;
}

void log_parameters(const ParameterCount& count) {
  log_info("model", "Number of parameters: {} total; {} training", count.total, count.training);
}

std::string weights_sha256(const torch::nn::Module& module) {
  Hash hash;
  for (const auto& [name, tensor] : state_dict(module)) {
    const at::Tensor plain = tensor.cpu().contiguous();
    hash.add(name.data(), name.size());
    hash.add(plain.const_data_ptr(), plain.nbytes());
  }
  return hash.hex();
}

std::string checkpoint_kind(const Cursor& checkpoint) {
  std::optional<Cursor> model;
  for (const char* key : {"model", kForeignModel}) {
    if (!model && checkpoint.value().is_dict()) model = checkpoint.find(key);
  }
  const Value& names = model ? model->value() : checkpoint.value();
  if (!names.is_dict()) return "";
  for (const auto& [key, value] : names.as_dict().items) {
    if (!key.is_string()) continue;
    std::string name = key.as_string();
    for (const std::string& wrapper : {kOnlineModel, kEmaModel}) {
      if (name.starts_with(wrapper)) name.erase(0, wrapper.size());
    }
    for (const RunKind& kind : run_kinds()) {
      for (const std::string& prefix : kind.tensor_prefixes) {
        if (name.starts_with(prefix)) return kind.key;
      }
    }
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
        "{0}: no entry \"model\": expected a checkpoint or model file of a {1} run\n"
        "  `dalle2-train inspect {0}` lists what it holds.",
        checkpoint.where(),
        kind);
  }
  const StateDict weights = checkpoint.has(kForeignModel)
                                ? checkpoint.at(kForeignModel).as_state_dict()
                                : checkpoint.as_state_dict();
  const StateDict online = strip_prefix(weights, kOnlineModel);
  return online.empty() ? weights : online;
}

void check_version(const Cursor& checkpoint,
                   const std::string& kind,
                   const std::string& full_json) {
  const Json config = Json::parse(full_json);
  if (!config.contains("written_by")) return;  // of a kind without versions
  ToldVersion told{"", "/written_by"};
  if (config.at("written_by").is_string()) told.version = config.at("written_by");
  const Version theirs =
      version_of_file(checkpoint, model_weights(checkpoint, kind, /*use_ema=*/false), kind, told);
  if (!told.version.empty() || same_network(kind, theirs).contains(kLastVersion)) return;
  throw ConfigError(
      "{0}: dalle2-pytorch {1} wrote it, and this config describes networks of {2}, which compute "
      "other things with such weights\n  Add \"written_by\": \"{1}\" to the config to train it on as it is.",
      checkpoint.where(),
      to_text(theirs),
      to_text(same_network(kind, kLastVersion)));
}

ReadOptions with_checkpoints(ReadOptions options) {
  options.config_of_checkpoint = config_of_checkpoint;
  options.sha256_of_clip = [](const std::string& model) {
    return sha256_of_file(clip_file_of(model));
  };
  return options;
}

VqganVae load_latent_vae(const LatentConfig& from) {
  VqganVae vae = frozen_vae(*from.model);
  const Value checkpoint = read_checkpoint(from.checkpoint);
  const Cursor root(checkpoint, from.checkpoint);
  check_kind(root, "vae");
  StateDict weights = model_weights(root, "vae", from.use_ema);
  check_vae_kind(weights, from.model->kind, from.checkpoint);
  std::erase_if(weights, [](const auto& item) { return item.first.starts_with("discr."); });
  load_state_dict(*vae, weights, /*prefix=*/"", /*strict=*/true, from.checkpoint);
  check_finite(*vae, from.checkpoint);
  return vae;
}

void load_latent_vaes(const Decoder& decoder) {
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    VqganVae vae = decoder->vae(unet);
    if (vae.is_empty()) continue;
    const UnetPlan& stage = decoder->plan().stages[static_cast<size_t>(unet - 1)];
    load_state_dict(*vae,
                    state_dict(*load_latent_vae(*stage.latent)),
                    /*prefix=*/"",
                    /*strict=*/true,
                    stage.latent->checkpoint);
  }
}

Decoder load_decoder(const ModelSource& source, const Value& checkpoint, ShardDataConfig* data) {
  const auto make = [data](const LoadedDecoderConfig& loaded, const StateDict& weights) {
    if (data != nullptr) *data = loaded.config.data;
    Decoder decoder(loaded.plan);
    // A stage that was not trained has no entries: it is taken out here too.
    for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
      if (strip_prefix(weights, fmt::format("unets.{}.", unet - 1)).empty())
        decoder->drop_unet(unet);
    }
    return decoder;
  };
  return load_model<parse_decoder_config>(source, checkpoint, make);
}

DiffusionPrior load_prior(const ModelSource& source, const Value& checkpoint) {
  return load_model<parse_prior_config>(
      source, checkpoint, [](const LoadedPriorConfig& loaded, const StateDict&) {
        return DiffusionPrior(loaded.plan);
      });
}

VqganVae load_vae(const ModelSource& source, const Value& checkpoint) {
  const auto make = [&](const LoadedVaeConfig& loaded, const StateDict& weights) {
    check_vae_kind(weights, loaded.config.vae.kind, source.checkpoint_path);
    return VqganVae(loaded.config.vae);
  };
  return load_model<parse_vae_config>(source, checkpoint, make);
}

std::shared_ptr<ClipImpl> load_clip_model(const ModelSource& source,
                                          const Value& checkpoint,
                                          ShardDataConfig* data) {
  return load_model<parse_clip_config>(
      source, checkpoint, [&](const LoadedClipConfig& loaded, const StateDict&) {
        if (data != nullptr) *data = loaded.config.data;
        return std::make_shared<ClipImpl>(loaded.config.clip);
      });
}

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
    config.erase("written_by");
  }
  Dict out;
  if (only_weights)
    out = with_entries(weights, root, {"lora"});
  else if (root.has("model"))
    out = root.as_dict();
  else
    out.set("model", to_dict(weights));
  out.set("version", to_text(version));
  if (config.is_null()) return out;
  for (const std::string& pointer : fit_reference(config)) {
    log_info(
        "ckpt", "{}: {} is an extension: the reference cannot build this {}", in, pointer, kind);
  }
  out.set("config", value_of_json(config.dump()));
  // Loaded, for it has to fit, and for the noise schedules, which the file may lack or have by older rules.
  const ModelSource last = {.checkpoint_path = in};
  if (how.to_last_version)
    out.set("model",
            to_dict(kind == "decoder" ? state_dict(*load_decoder(last, out))
                                      : state_dict(*load_prior(last, out))));
  return out;
}

}  // namespace dalle2
