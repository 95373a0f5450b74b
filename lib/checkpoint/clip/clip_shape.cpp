// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_shape.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

#include "config/reading/writer.h"

namespace dalle2 {
namespace {

constexpr int64_t kUsualHeadWidth = 64;
/// Width of an image tower, and of its heads where they are not of the usual width.
constexpr std::pair<int64_t, int64_t> kHeadWidths[] = {{1280, 80}, {1408, 88}, {1664, 104}};

constexpr const char* kFirstResNetConv = "visual.layer1.0.conv1.weight";
constexpr const char* kSupported =
    "only OpenAI's networks are supported: vision transformers and ResNets with attention pooling on RGB "
    "pictures, causal text transformers with OpenAI's tokenizer whose feature is that of the end token";

/// Parts of the names of tensors of CLIPs with other networks, and what they are of.
constexpr std::pair<const char*, const char*> kOtherNetworks[] = {
    {"vision_model.embeddings.patch_embedding.bias",
     "SigLIP, whose loss, pooling and tokenizer are others"},
    {"logit_bias", "the sigmoid loss of SigLIP (init_logit_bias)"},
    {"visual.trunk.", "an image tower of timm (timm_model_name)"},
    {"transformer.embeddings.", "a text tower of Hugging Face (hf_model_name)"},
    {"text_decoder.", "CoCa (multimodal_cfg)"},
    {"attn_pool.", "an attentional pooler (attentional_pool)"},
    {"cls_emb", "a class token of texts (embed_cls)"},
    {".ls_1.", "scaled layers (ls_init_value)"},
    {"text_projection.bias", "a text projection with a bias (proj_bias)"}};

void refuse_other_networks(const StateDict& tensors, const std::string& where) {
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [sign, network] : kOtherNetworks) {
      if (name.find(sign) != std::string::npos)
        throw DataError("{}: the tensor '{}' is of {}: {}", where, name, network, kSupported);
    }
  }
}

class Shapes {
 public:
  Shapes(const StateDict& tensors, const std::string& where) : tensors_(tensors), where_(where) {}

  bool has(const std::string& name) const { return find_tensor(tensors_, name) != nullptr; }

  /// Extent `dim` of a tensor of `dims` dimensions.
  int64_t extent(const std::string& name, int64_t dims, int64_t dim) const {
    const at::Tensor* tensor = find_tensor(tensors_, name);
    if (tensor == nullptr) {
      throw DataError(
          "{}: not a CLIP as OpenAI, open_clip, Hugging Face or x-clip write it: the tensor '{}' "
          "is missing",
          where_,
          name);
    }
    if (tensor->dim() != dims || tensor->numel() == 0) {
      throw DataError("{}: '{}': expected {} dimensions and at least one element, got {}",
                      where_,
                      name,
                      dims,
                      shape_text(tensor->sizes()));
    }
    return tensor->size(dim);
  }

  /// Modules `prefix`0, `prefix`1, ... of which there is a tensor `prefix`N`suffix`.
  int64_t count(const std::string& prefix, const std::string& suffix) const {
    int64_t number = 0;
    while (has(prefix + std::to_string(number) + suffix)) ++number;
    return number;
  }

  /// Side of the square of tokens that a positional embedding is for, the first token left out.
  int64_t grid(const std::string& name) const {
    const int64_t places = extent(name, 2, 0) - 1;
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(places))));
    if (side < 1 || side * side != places) {
      throw DataError(
          "{}: '{}' has {} rows: expected a square number and one, as of a square picture",
          where_,
          name,
          places + 1);
    }
    return side;
  }

  double mlp_ratio(const std::string& blocks, int64_t width) const {
    const int64_t inner = extent(blocks + "0.mlp.c_fc.weight", 2, 0);
    const double ratio = static_cast<double>(inner) / static_cast<double>(width);
    const bool is_exact = static_cast<int64_t>(ratio * static_cast<double>(width)) == inner;
    return is_exact ? ratio : std::nextafter(ratio, INFINITY);
  }

 private:
  const StateDict& tensors_;
  const std::string& where_;
};

int64_t head_width_of(int64_t width) {
  for (const auto& [of, head_width] : kHeadWidths)
    if (of == width) return head_width;
  return kUsualHeadWidth;
}

ClipVisionConfig resnet_of(const Shapes& shapes) {
  ClipVisionConfig vision;
  std::vector<int64_t> blocks;
  for (size_t stage = 1; stage <= ClipVisionConfig::kResNetStages; ++stage)
    blocks.push_back(shapes.count("visual.layer" + std::to_string(stage) + ".", ".conv1.weight"));
  vision.layers = std::move(blocks);
  vision.width = shapes.extent(kFirstResNetConv, 4, 0);
  vision.image_size =
      shapes.grid("visual.attnpool.positional_embedding") * ClipVisionConfig::kResNetMult;
  return vision;
}

ClipVisionConfig transformer_of(const Shapes& shapes) {
  const std::string blocks = "visual.transformer.resblocks.";
  ClipVisionConfig vision;
  vision.width = shapes.extent("visual.conv1.weight", 4, 0);
  vision.patch_size = shapes.extent("visual.conv1.weight", 4, 3);
  vision.layers = shapes.count(blocks, ".attn.in_proj_weight");
  vision.mlp_ratio = shapes.mlp_ratio(blocks, vision.width);
  vision.head_width = head_width_of(vision.width);
  vision.image_size = shapes.grid("visual.positional_embedding") * vision.patch_size;
  return vision;
}

ClipTextConfig text_of(const Shapes& shapes) {
  const std::string blocks = "transformer.resblocks.";
  ClipTextConfig text;
  text.context_length = shapes.extent("positional_embedding", 2, 0);
  text.vocab_size = shapes.extent("token_embedding.weight", 2, 0);
  text.width = shapes.extent("token_embedding.weight", 2, 1);
  text.heads = std::max<int64_t>(text.width / kUsualHeadWidth, 1);
  text.layers = shapes.count(blocks, ".attn.in_proj_weight");
  text.mlp_ratio = shapes.mlp_ratio(blocks, text.width);
  return text;
}

const Json* member(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

// Keys of open_clip's configs that this program's networks do not have, each between spaces.
/// They make another network, or other tokens, unless they are off or have the usual value.
constexpr std::string_view kOtherKeys =
    " /init_logit_bias /nonscalar_logit_scale /multimodal_cfg /vision_cfg/timm_model_name"
    " /vision_cfg/attentional_pool /vision_cfg/ls_init_value /vision_cfg/no_ln_pre"
    " /vision_cfg/final_ln_after_pool /vision_cfg/pool_type /vision_cfg/output_tokens"
    " /vision_cfg/act_kwargs /text_cfg/hf_model_name /text_cfg/hf_tokenizer_name"
    " /text_cfg/tokenizer_kwargs /text_cfg/ls_init_value /text_cfg/embed_cls"
    " /text_cfg/no_causal_mask /text_cfg/pool_type /text_cfg/proj_type /text_cfg/proj_bias"
    " /text_cfg/output_tokens /text_cfg/act_kwargs /preprocess_cfg/mode ";
const Json kOff = {nullptr, false, "", Json::object(), "tok", "argmax", "linear", "RGB"};
/// They change no feature. The file holds positions; open_clip takes `size` from the image tower, and does
/// not look at the texts' final_ln_after_pool.
constexpr std::string_view kIdleKeys =
    " /custom_text /cast_dtype /output_dict /vision_cfg/patch_dropout /vision_cfg/pos_embed_type"
    " /vision_cfg/attn_pooler_queries /vision_cfg/attn_pooler_heads"
    " /vision_cfg/timm_model_pretrained /vision_cfg/timm_pool /vision_cfg/timm_proj"
    " /vision_cfg/timm_proj_bias /vision_cfg/timm_drop /vision_cfg/timm_drop_path"
    " /text_cfg/final_ln_after_pool /text_cfg/pad_id /text_cfg/hf_model_pretrained"
    " /text_cfg/hf_proj_type /text_cfg/hf_pooler_type /preprocess_cfg/size ";

// Those that this program's networks have.
const std::vector<std::string> kModelKeys = {
    "embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "init_logit_scale"};
const std::vector<std::string> kPictureKeys = {
    "mean", "std", "interpolation", "resize_mode", "fill_color"};

/// What is left of a section of a model config without the keys of other networks, and without null for a default.
/// @param where the section of `pointer` is, for messages @param known keys; none: any
/// @throws DataError for a key that is not known, and for one whose value makes another network
Json own_keys(const Json& section,
              const std::string& pointer,
              const std::string& where,
              const std::vector<std::string>& known = {}) {
  if (!section.is_object()) return section;
  Json own = Json::object();
  for (const auto& [key, value] : section.items()) {
    const std::string at = fmt::format("{}/{}", pointer, key), word = " " + at + " ";
    const bool is_other = kOtherKeys.find(word) != std::string_view::npos;
    if (is_other && std::find(kOff.begin(), kOff.end(), value) == kOff.end())
      throw DataError("{}{}: {}: {}", where, at, value.dump(), kSupported);
    if (is_other || value.is_null() || kIdleKeys.find(word) != std::string_view::npos) continue;
    if (!known.empty() && std::ranges::find(known, key) == known.end())
      throw DataError("{}{}: no such key; known are: {}", where, at, fmt::join(known, ", "));
    own[key] = value;
  }
  return own;
}

// Keys of transformers' PretrainedConfig and of its CLIPConfigs in any version, each between spaces: those
// that CLIPModel looks at, and those that change no feature.
constexpr std::string_view kHuggingFaceKeys =
    " text_config vision_config text_config_dict vision_config_dict logit_scale_init_value vocab_size"
    " hidden_size intermediate_size projection_dim num_hidden_layers num_attention_heads num_channels"
    " max_position_embeddings image_size patch_size hidden_act layer_norm_eps attention_dropout dropout"
    " initializer_range initializer_factor bos_token_id eos_token_id pad_token_id sep_token_id"
    " decoder_start_token_id model_type architectures transformers_version _name_or_path _commit_hash"
    " auto_map custom_pipelines dtype torch_dtype torchscript use_bfloat16 xla_device"
    " _attn_implementation _attn_implementation_autoset attn_implementation gradient_checkpointing"
    " use_cache output_attentions output_hidden_states output_scores return_dict tie_word_embeddings"
    " tie_encoder_decoder tie_last_hidden_states tf_legacy_loss chunk_size_feed_forward is_decoder"
    " is_encoder_decoder is_composition add_cross_attention cross_attention_hidden_size finetuning_task"
    " task_specific_params problem_type num_labels id2label label2id tokenizer_class prefix max_length"
    " min_length do_sample early_stopping num_beams num_beam_groups num_return_sequences"
    " diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty"
    " no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids suppress_tokens"
    " begin_suppress_tokens forced_bos_token_id forced_eos_token_id remove_invalid_values"
    " exponential_decay_length_penalty return_dict_in_generate ";

/// @throws DataError for another key than these, unless it is null or empty
void check_hugging_face_keys(const Json& section,
                             const std::string& pointer,
                             const std::string& where) {
  if (!section.is_object()) return;
  for (const auto& [key, value] : section.items()) {
    const bool is_known = kHuggingFaceKeys.find(" " + key + " ") != std::string_view::npos;
    if (is_known || value.is_null() || value == Json::object()) continue;
    throw DataError(
        "{}: {}/{}: no such key of a CLIPModel\n  If it changes no embedding, take it out.",
        where,
        pointer,
        key);
  }
}

}  // namespace

ClipNetworkConfig clip_shape_of(const StateDict& tensors, const std::string& where) {
  refuse_other_networks(tensors, where);
  const Shapes shapes(tensors, where);
  ClipNetworkConfig config;
  config.text_cfg = text_of(shapes);
  config.vision_cfg = shapes.has(kFirstResNetConv) ? resnet_of(shapes) : transformer_of(shapes);
  config.embed_dim = shapes.extent("text_projection", 2, 1);
  return config;
}

void check_shape(const ClipNetworkConfig& config,
                 const std::string& config_where,
                 const StateDict& tensors,
                 const std::string& where) {
  ClipNetworkConfig shape = clip_shape_of(tensors, where);
  ClipVisionConfig& vision = shape.vision_cfg;
  const ClipVisionConfig& wanted = config.vision_cfg;
  if (vision.is_resnet() == wanted.is_resnet()) {
    // Pixels at the edge that no patch covers leave no trace, nor does what only one of the two has.
    if (vision.grid() == wanted.grid()) vision.image_size = wanted.image_size;
    if (vision.is_resnet()) vision.patch_size = wanted.patch_size;
    if (vision.is_resnet()) vision.mlp_ratio = wanted.mlp_ratio;
  }
  // Ratios that give the same inner width are equal.
  const auto take_ratio = [](int64_t width, double& found_ratio, double ratio) {
    const auto inner = [&](double of) {
      return static_cast<int64_t>(static_cast<double>(width) * of);
    };
    if (inner(found_ratio) == inner(ratio)) found_ratio = ratio;
  };
  take_ratio(vision.width, vision.mlp_ratio, wanted.mlp_ratio);
  take_ratio(shape.text_cfg.width, shape.text_cfg.mlp_ratio, config.text_cfg.mlp_ratio);
  vision.head_width = wanted.head_width;
  vision.norm_kwargs = wanted.norm_kwargs;
  shape.text_cfg.norm_kwargs = config.text_cfg.norm_kwargs;
  shape.text_cfg.heads = config.text_cfg.heads;
  const Json given = to_json(config), found = to_json(shape);
  for (const char* key : {"/embed_dim", "/vision_cfg", "/text_cfg"}) {
    const Json::json_pointer section(key);
    const Json flat_given = given.at(section).flatten(), flat_found = found.at(section).flatten();
    for (const auto& [pointer, value] : flat_given.items()) {
      const auto other = flat_found.find(pointer);
      if (other != flat_found.end() && *other == value) continue;
      throw DataError("{}{}{}: is {}, but the weights in {} are of another network{}",
                      config_where,
                      key,
                      pointer,
                      value.dump(),
                      where,
                      other != flat_found.end() ? ": " + other->dump() : "");
    }
  }
}

ClipNetworkConfig clip_config_of_open_clip(const Json& json, const std::string& where) {
  const Json* const inner = member(json, "model_cfg");
  if (inner != nullptr) own_keys(json, "", where + ": ", {"model_cfg", "preprocess_cfg"});
  const std::string root = inner != nullptr ? "/model_cfg" : "", model = where + ": " + root;
  Json keys = own_keys(inner != nullptr ? *inner : json, "", model, kModelKeys);
  for (const char* section : {"vision_cfg", "text_cfg"}) {
    if (const Json* const given = member(keys, section))
      keys[section] = own_keys(*given, std::string("/") + section, model);
  }
  if (const Json* const given = member(json, "preprocess_cfg"); given && keys.is_object()) {
    if (!given->is_object())
      throw DataError("{}: /preprocess_cfg: expected an object, got {}", where, given->dump());
    const Json own = own_keys(*given, "/preprocess_cfg", where + ": ", kPictureKeys);
    for (const auto& [key, value] : own.items()) keys["image_" + key] = value;
  }
  return config_in_file<ClipNetworkConfig>(keys, where, root, "/preprocess_cfg/");
}

Json open_clip_config_of(const ClipNetworkConfig& config) {
  Json model = to_json(config);
  const Json plain = to_json(ClipNetworkConfig());
  Json preprocess = Json::object();
  for (const std::string& key : kPictureKeys) {
    const std::string own = "image_" + key;
    // Not every version of open_clip knows the others.
    const bool is_known = key == "mean" || key == "std";
    if (is_known || model[own] != plain[own]) preprocess[key] = model[own];
    model.erase(own);
  }
  for (const char* section : {"vision_cfg", "text_cfg"}) {
    Json& norms = model[section]["norm_kwargs"];
    if (norms == plain[section]["norm_kwargs"]) model[section].erase("norm_kwargs");
  }
  if (config.vision_cfg.is_resnet()) model["vision_cfg"].erase("patch_size");
  Json result = Json::object();
  result["model_cfg"] = std::move(model);
  result["preprocess_cfg"] = std::move(preprocess);
  return result;
}

void apply_hugging_face_config(const Json& json,
                               const std::string& where,
                               ClipNetworkConfig& config) {
  // Its own defaults, which it may leave out of the file.
  int64_t image_heads = 12, text_heads = 8, image_size = 224, end_token = 49407;
  const auto refuse = [&](const std::string& key, const std::string& expected, const auto& got) {
    throw DataError("{}: /{}: expected {}, got {}", where, key, expected, got);
  };
  check_hugging_face_keys(json, "", where);
  for (const char* section :
       {"text_config", "vision_config", "text_config_dict", "vision_config_dict"}) {
    if (const Json* const given = member(json, section))
      check_hugging_face_keys(*given, std::string("/") + section, where);
  }
  if (const Json* const type = member(json, "model_type"); type != nullptr && *type != "clip")
    refuse("model_type", "\"clip\"", type->dump());
  std::string activation = "quick_gelu", text_activation = activation;
  const auto take = [&](const char* section, const char* key, auto& value) {
    const Json* of = member(json, (std::string(section) + "_dict").c_str());  // it counts if given
    if (of == nullptr) of = member(json, section);
    const Json* const found = of != nullptr ? member(*of, key) : nullptr;
    if (found == nullptr) return;
    using Wanted = std::remove_reference_t<decltype(value)>;
    const bool is_whole = !std::is_integral_v<Wanted> || found->is_number_integer();
    const std::string wanted = Json(value).type_name();  // "number", "string"
    if (!is_whole || found->type_name() != wanted)
      refuse(
          std::string(section) + "/" + key, (is_whole ? "a " : "a whole ") + wanted, found->dump());
    value = found->template get<Wanted>();
  };
  take("vision_config", "num_attention_heads", image_heads);
  take("text_config", "num_attention_heads", text_heads);
  take("vision_config", "hidden_act", activation);
  take("text_config", "hidden_act", text_activation);
  take("vision_config", "layer_norm_eps", config.vision_cfg.norm_kwargs.eps);
  take("text_config", "layer_norm_eps", config.text_cfg.norm_kwargs.eps);
  take("vision_config", "image_size", image_size);
  take("text_config", "eos_token_id", end_token);
  const auto check_heads = [&](const char* key, int64_t heads, int64_t width) {
    if (heads < 1 || width % heads != 0)
      refuse(key, fmt::format("a divisor of the width {}", width), heads);
  };
  check_heads("vision_config/num_attention_heads", image_heads, config.vision_cfg.width);
  check_heads("text_config/num_attention_heads", text_heads, config.text_cfg.width);
  const auto check_layers = [&](const char* section, int64_t weights) {
    int64_t layers = weights;
    take(section, "num_hidden_layers", layers);
    if (layers != weights)
      refuse(std::string(section) + "/num_hidden_layers",
             fmt::format("{}, as the weights have", weights),
             layers);
  };
  check_layers("vision_config", config.vision_cfg.layers.values().front());
  check_layers("text_config", config.text_cfg.layers);
  const auto quoted = [](const std::string& text) { return '"' + text + '"'; };
  if (activation != "quick_gelu" && activation != "gelu") {
    refuse("vision_config/hidden_act", "\"gelu\" or \"quick_gelu\"", quoted(activation));
  }
  if (text_activation != activation) {
    refuse("text_config/hidden_act",
           quoted(activation) + ", as in /vision_config",
           quoted(text_activation));
  }
  constexpr int64_t kHighestToken = 2;  // of old files: the feature is that of the highest token
  if (end_token != kHighestToken && end_token != config.text_cfg.end_token()) {
    refuse("text_config/eos_token_id",
           fmt::format("{}, the last of the vocabulary", config.text_cfg.end_token()),
           end_token);
  }
  const int64_t grid = config.vision_cfg.grid(), patch = config.vision_cfg.patch_size;
  if (image_size / patch != grid) {
    refuse("vision_config/image_size",
           fmt::format("{} to {}, {} patches of {} pixels as the weights have",
                       grid * patch,
                       (grid + 1) * patch - 1,
                       grid,
                       patch),
           image_size);
  }
  config.vision_cfg.image_size = image_size;
  config.quick_gelu = activation == "quick_gelu";
  config.vision_cfg.head_width = config.vision_cfg.width / image_heads;
  config.text_cfg.heads = text_heads;
}

}  // namespace dalle2
