// SPDX-License-Identifier: MIT
#include "config/shared/old_configs.h"

#include <initializer_list>

#include "base/error.h"
#include "config/reading/json_text.h"

namespace dalle2 {
namespace {

/// A section of a config, whatever was put in its place.
class KeysOf {
 public:
  KeysOf(Json& parent, const char* key)
      : json_(parent.is_object() && parent.contains(key) && parent[key].is_object() ? &parent[key]
                                                                                    : nullptr) {}
  explicit KeysOf(Json& json) : json_(json.is_object() ? &json : nullptr) {}

  bool has(const char* key) const { return json_ != nullptr && json_->contains(key); }
  Json* find(const char* key) { return has(key) ? &(*json_)[key] : nullptr; }
  Json* get() { return json_; }
  void set_absent(const char* key, Json value) {
    if (json_ != nullptr && !has(key)) (*json_)[key] = std::move(value);
  }
  void erase(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (has(key)) json_->erase(key);
    }
  }

 private:
  Json* json_;
};

void complete_unet(KeysOf unet, const Version& v) {
  if (v < Version{0, 15, 0}) {
    unet.set_absent("final_conv_kernel_size", 3);
    unet.set_absent("pixel_shuffle_upsample", false);
  }
  if (const Json* nearest = unet.find("nearest_upsample"); nearest && v < Version{0, 21, 0}) {
    unet.set_absent("pixel_shuffle_upsample", *nearest != true);
    unet.erase({"nearest_upsample"});
  }
}

void complete_decoder(KeysOf decoder, const Version& v) {
  if (decoder.get() == nullptr) return;
  size_t count = 0;
  if (Json* unets = decoder.find("unets"); unets && unets->is_array()) {
    count = unets->size();
    for (Json& unet : *unets) complete_unet(KeysOf(unet), v);
  }
  if (v < Version{0, 26, 1}) decoder.set_absent("dynamic_thres_percentile", 0.9);
  if (v >= Version{0, 19, 0} && v < Version{1, 12, 0}) {
    decoder.set_absent("ddim_sampling_eta", 1.0);
  }
  if (v < Version{0, 14, 1}) decoder.set_absent("blur_sigma", Json::array({0.1, 0.2}));
  if (v < Version{0, 23, 5}) decoder.set_absent("blur_prob", 1.0);
  if (v < Version{1, 0, 3}) {
    decoder.set_absent("beta_schedule", "cosine");
    Json& schedule = *decoder.find("beta_schedule");
    if (schedule.is_string()) schedule = Json::array_t(count, schedule);
  }
  if (v < Version{0, 19, 1}) decoder.erase({"sampling_timesteps"});
  const Json* nearest = decoder.find("lowres_downsample_mode_nearest");
  if (nearest != nullptr && *nearest == false) decoder.erase({"lowres_downsample_mode_nearest"});
}

/// Trackers of up to 0.15.1 logged and saved by keys of their own.
void complete_tracker(Json& root) {
  KeysOf tracker(root, "tracker");
  tracker.erase({"tracker_type", "init_config", "wandb_entity", "wandb_project", "verbose"});
  tracker.set_absent("log", {{"log_type", "console"}});
  tracker.set_absent("save", Json::array({{{"save_to", "local"}}}));
}

}  // namespace

std::optional<Version> written_by(const Json& root, const std::string& where) {
  const auto version = root.find("written_by");
  if (version == root.end() || version->is_null()) return std::nullopt;
  const std::string pointer = where + ": /written_by";
  if (version->is_string()) return parse_version(version->get<std::string>(), pointer);
  throw ConfigError("{}: expected a string such as \"1.1.0\", got {}", pointer, shown(*version));
}

std::vector<std::string> keep_section(Json& root, const std::string& section) {
  Json kept = {{"train", Json::object()}};
  if (root.contains(section)) kept[section] = root[section];
  std::vector<std::string> pointers = {"/" + section};
  for (const char* pointer : {"/written_by",
                              "/train/allow_changed_config",
                              "/data/apply_exif",
                              "/data/folder",
                              "/data/ground",
                              "/data/range"}) {
    const Json::json_pointer at(pointer);
    if (!root.contains(at)) continue;
    kept[at] = root[at];
    pointers.emplace_back(pointer);
  }
  root = std::move(kept);
  return pointers;
}

void complete_old_config(Json& root, const std::string& kind, const std::string& where) {
  const Version v = written_by(root, where).value_or(kLastVersion);
  if (v >= kLastVersion) return;
  const bool is_prior = kind == "prior";
  KeysOf train(root, "train");
  if (v < Version{0, 15, 2}) {
    complete_tracker(root);
    train.erase({"save_all", "save_latest", "save_best"});
  }
  if (is_prior && v < Version{1, 0, 1}) {
    train.erase({"save_every"});
    KeysOf(root, "data").set_absent("batch_size", 64);
  }
  if (is_prior ? v < Version{1, 0, 1} : v < Version{0, 15, 2}) KeysOf(root).erase({"load"});
  if (!is_prior) return complete_decoder(KeysOf(root, "decoder"), v);
  if (Json* prior = KeysOf(root).find("prior")) {
    KeysOf(*prior, "net").erase({"attend_all_text_encodings"});
  }
}

std::vector<std::string> fit_reference(Json& root) {
  std::vector<std::string> unknown;
  if (!root.contains("decoder")) return unknown;
  Json kept = Json::object();
  for (const auto& [key, value] : root["decoder"].items()) {
    const bool is_extension = key == "zero_terminal_snr" || key == "vae";
    if (value.is_null() || (is_extension && value == false)) continue;
    kept[key] = value;
    if (is_extension) unknown.push_back("/decoder/" + key);
  }
  root["decoder"] = std::move(kept);
  return unknown;
}

}  // namespace dalle2
