// SPDX-License-Identifier: MIT
#include "config/resume_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "base/error.h"
#include "config/kinds.h"
#include "config/reading/json_text.h"

namespace dalle2 {
namespace {

/// Keys of `decoder`, `prior` and the objects below them that leave the meaning of weights alone.
const std::set<std::string, std::less<>> kHarmlessModelKeys = {
    // sampling
    "sample_timesteps",
    "ddim_sampling_eta",
    "use_dynamic_thres",
    "dynamic_thres_percentile",
    "lowres_noise_sample_level",
    "sampling_clamp_l2norm",
    "sampling_final_clamp_l2norm",
    "init_image_embed_l2norm",
    // regularisation and augmentation
    "image_cond_drop_prob",
    "text_cond_drop_prob",
    "cond_drop_prob",
    "attn_dropout",
    "ff_dropout",
    "random_crop_sizes",
    // weights of a loss
    "vq_commitment_weight",
    "entropy_loss_weight",
    "commitment_loss_weight",
    "diversity_gamma",
    "p2_loss_weight_gamma",
    "p2_loss_weight_k",
    "vb_loss_weight",
    // memory
    "checkpoint_during_training",
    // where weights came from, which the checkpoint holds
    "checkpoint",
    "use_ema",
    // no effect
    "clip_denoised",
    "clip_x_start",
    "attend_at_middle",
    "out_dim",
    "channels_out",
    "lowres_cond",
    "lowres_noise_cond",
    "cond_on_image_embeds",
    "image_size",
    "image_channels",
    // where training begins
    "init_logit_scale"};

/// Keys elsewhere that do give weights or data another meaning.
const std::set<std::string, std::less<>> kMeaningPointers = {"/seed",
                                                             "/data/splits",
                                                             "/data/start_shard",
                                                             "/data/end_shard",
                                                             "/data/num_data_points",
                                                             "/data/folder",
                                                             "/data/folder_order",
                                                             "/data/ground",
                                                             "/data/apply_exif",
                                                             "/data/range",
                                                             "/data/caption_encoding",
                                                             "/data/caption_lines",
                                                             "/data/valid_frac",
                                                             "/data/random_split_seed",
                                                             "/data/index_width"};

/// Keys that decide the order of the samples of an epoch.
const std::set<std::string, std::less<>> kOrderPointers = {
    "/data/shuffle_train", "/data/resample_train", "/data/shuffle_rows"};

/// Places of the run's own files: no change that anybody would want to hear of.
constexpr std::array kBookkeeping = {
    "/tracker/data_path", "/tracker/overwrite_data_path", "/tracker/load", "/tracker/save"};

/// Keys of `train.lora` that say what the adapters' weights are.
const std::set<std::string, std::less<>> kAdapterPointers = {
    "/train/lora/rank", "/train/lora/alpha", "/train/lora/targets", "/train/lora/train_bias"};

bool is_below(std::string_view pointer, std::string_view top) {
  return pointer == top || (pointer.starts_with(top) && pointer[top.size()] == '/');
}

const Json* find(const Json& root, const char* pointer) {
  const Json::json_pointer path(pointer);
  return root.contains(path) ? &root.at(path) : nullptr;
}

/// A prior's `seed` and the reference's `train.random_seed` are one value.
void unify_seeds(Json& root) {
  if (!root.contains("prior") || !root.contains("train") || !root["train"].is_object()) return;
  if (!root["train"].contains("random_seed")) return;
  const Json seed = root["train"]["random_seed"];
  root["train"].erase("random_seed");
  if (!root.contains("seed")) root["seed"] = seed;
}

/// Two forms that mean the same become one: `image_size`, the order of `image_sizes`, the seed.
void unify(Json& root) {
  unify_seeds(root);
  if (!root.contains("decoder") || !root["decoder"].is_object()) return;
  Json& decoder = root["decoder"];
  if (decoder.contains("image_size") && decoder["image_size"].is_number()) {
    decoder["image_sizes"] = Json::array({decoder["image_size"]});
  }
  decoder.erase("image_size");
  if (decoder.contains("image_sizes") && decoder["image_sizes"].is_array()) {
    std::sort(decoder["image_sizes"].begin(), decoder["image_sizes"].end());
  }
}

/// A config with every default filled in, as far as this version can read it.
struct Filled {
  Json root;
  bool is_full = false;
};

Filled filled(const std::string& text) {
  Filled result;
  try {
    Faults ignored;
    result.root = parse_root(text, "config", ignored);
    unify(result.root);
    const ReadOptions options = {.overrides = {}, .check_available = false, .no_commands = true};
    const auto& kinds = config_kinds();
    const auto kind = std::ranges::find_if(
        kinds, [&](const ConfigKind& each) { return result.root.contains(each.key); });
    if (kind == kinds.end()) return result;
    result = {Json::parse(kind->fill_in(text, "", options)), true};
    unify(result.root);
  } catch (const ConfigError&) {
    // No JSON object, or compared as far as both have the same keys.
  }
  return result;
}

/// The sides that pictures are cropped or scaled to: [["Resize", [64]], ...].
Json preprocessed_sizes(const Json& transforms) {
  Json sizes = Json::array();
  for (const auto& [name, arguments] : transforms.items()) {
    if (!arguments.is_object() || !arguments.contains("size")) continue;
    const Json& size = arguments["size"];
    sizes.push_back({name, size.is_array() ? size : Json::array({size})});
  }
  return sizes;
}

class Comparison {
 public:
  Comparison(const Filled& saved, const Filled& current, const ConfigNames& names)
      : saved_(saved.root),
        current_(current.root),
        both_full_(saved.is_full && current.is_full),
        names_(names) {}

  ConfigChanges changes() {
    for (const ConfigKind& kind : config_kinds()) {
      if (saved_.contains(kind.key) == current_.contains(kind.key)) continue;
      const std::string& where = current_.contains(kind.key) ? names_.current : names_.saved;
      changes_.meaning.push_back(fmt::format("/{}: only {} has this key", kind.key, where));
    }
    if (changes_.meaning.empty()) compare(saved_, current_, "");
    return std::move(changes_);
  }

 private:
  void compare(const Json& saved, const Json& current, const std::string& pointer) {
    if (std::ranges::any_of(kBookkeeping,
                            [&](const char* top) { return is_below(pointer, top); })) {
      return;
    }
    if (pointer == "/data/preprocessing") return compare_transforms(saved, current, pointer);
    if (saved.is_object() && current.is_object()) {
      compare_objects(saved, current, pointer);
    } else if (is_list_of_objects(saved) && is_list_of_objects(current) &&
               saved.size() == current.size()) {
      for (size_t i = 0; i < saved.size(); ++i) {
        compare(saved[i], current[i], fmt::format("{}/{}", pointer, i));
      }
    } else if (!are_same(saved, current, pointer)) {
      add(is_meaning(pointer), pointer, saved, current);
    }
  }

  void compare_objects(const Json& saved, const Json& current, const std::string& pointer) {
    // Both may be full and yet have different keys, where a tag says which there are.
    const Json absent;
    for (const auto& [key, value] : current.items()) {
      const std::string below = pointer + "/" + pointer_part(key);
      if (saved.contains(key)) {
        compare(saved.at(key), value, below);
      } else if (both_full_ && !pointer.empty()) {
        compare(absent, value, below);
      }
    }
    if (!both_full_) return;
    for (const auto& [key, value] : saved.items()) {
      if (!current.contains(key)) compare(value, absent, pointer + "/" + pointer_part(key));
    }
  }

  void compare_transforms(const Json& saved, const Json& current, const std::string& pointer) {
    // The order of the transforms counts, which == of objects with an order compares too.
    if (saved == current) return;
    const bool resized = preprocessed_sizes(saved) != preprocessed_sizes(current);
    add(resized, pointer, saved, current);
  }

  static bool is_list_of_objects(const Json& value) {
    return value.is_array() && !value.empty() && value[0].is_object();
  }

  /// Whether two values that are not both objects mean the same.
  static bool are_same(const Json& saved, const Json& current, const std::string& pointer) {
    if (saved == current) return true;
    // The file of a CLIP that was not looked for.
    if (pointer.ends_with("/clip/sha256") && (saved.is_null() || current.is_null())) return true;
    if (saved.is_array() == current.is_array()) return false;
    const Json& list = saved.is_array() ? saved : current;
    const Json& value = saved.is_array() ? current : saved;
    if (list.empty() || value.is_null() || list[0] != value) return false;
    // A single value of this key is for the first unet, the others have false.
    const bool first_only = pointer == "/decoder/learned_variance";
    return std::all_of(list.begin() + 1, list.end(), [&](const Json& entry) {
      return entry == (first_only ? Json(false) : value);
    });
  }

  bool is_meaning(const std::string& pointer) const {
    for (const ConfigKind& kind : config_kinds()) {
      if (!is_below(pointer, "/" + kind.key)) continue;
      if (pointer.starts_with("/decoder/unets/") && pointer.ends_with("/channels")) return false;
      if (pointer == "/clip/vision_cfg/image_size") return true;  // a position for each patch
      if (pointer == "/clip/tokenizer/path") return false;        // a checkpoint holds its contents
      if (pointer.ends_with("/clip/model") || pointer.ends_with("/clip/make"))
        return false;  // a place: its sha256 says whether it is another CLIP
      // Lists have numbers after the key.
      std::string_view rest = pointer;
      while (!rest.empty()) {
        const size_t slash = rest.rfind('/');
        if (kHarmlessModelKeys.contains(rest.substr(slash + 1))) return false;
        rest = rest.substr(0, slash);
      }
      return true;
    }
    if (kAdapterPointers.contains(pointer)) return has_adapters(saved_) && has_adapters(current_);
    return std::ranges::any_of(kMeaningPointers,
                               [&](const auto& top) { return is_below(pointer, top); });
  }

  static bool has_adapters(const Json& root) {
    const Json* rank = find(root, "/train/lora/rank");
    return rank != nullptr && rank->is_number() && *rank > 0;
  }

  void add(bool meaning, const std::string& pointer, const Json& saved, const Json& current) {
    std::vector<std::string>& list = meaning ? changes_.meaning : changes_.other;
    const bool two_names = pointer == "/seed" && current_.contains("prior");
    list.push_back(fmt::format("{}: {} has {}, {} {}",
                               two_names ? "/seed (/train/random_seed)" : pointer,
                               names_.saved,
                               text_of(saved),
                               names_.current,
                               text_of(current)));
    if (kOrderPointers.contains(pointer)) changes_.order.push_back(list.back());
  }
  static std::string text_of(const Json& value) {
    if (!is_list_of_objects(value)) return shown(value);
    return fmt::format("{} entr{}", value.size(), value.size() == 1 ? "y" : "ies");
  }

  const Json& saved_;
  const Json& current_;
  bool both_full_;
  const ConfigNames& names_;
  ConfigChanges changes_;
};

}  // namespace

ConfigChanges compare_for_resume(const std::string& saved_full_json,
                                 const std::string& current_full_json,
                                 const ConfigNames& names) {
  const Filled saved = filled(saved_full_json);
  const Filled current = filled(current_full_json);
  if (!saved.root.is_object() || !current.root.is_object()) return {};
  return Comparison(saved, current, names).changes();
}

}  // namespace dalle2
