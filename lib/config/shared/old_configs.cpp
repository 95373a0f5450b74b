// SPDX-License-Identifier: MIT
#include "config/shared/old_configs.h"

#include <initializer_list>

#include "base/error.h"
#include "config/reading/json_text.h"

namespace dalle2 {
namespace {

/// A section of a config; what is done to one that is not there is forgotten.
Json& section_of(Json& parent, const char* key) {
  static thread_local Json none;
  return parent.contains(key) ? parent[key] : none = nullptr;
}

void set_absent(Json& section, const char* key, Json value) {
  if (section.is_object() && !section.contains(key)) section[key] = std::move(value);
}

void erase_keys(Json& section, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (section.is_object()) section.erase(key);
}

void complete_unet(Json& unet, const Version& v) {
  if (v < Version{0, 15, 0}) {
    set_absent(unet, "final_conv_kernel_size", 3);
    set_absent(unet, "pixel_shuffle_upsample", false);
  }
  if (unet.contains("nearest_upsample") && v < Version{0, 21, 0}) {
    set_absent(unet, "pixel_shuffle_upsample", unet["nearest_upsample"] != true);
    erase_keys(unet, {"nearest_upsample"});
  }
}

void complete_decoder(Json& decoder, const Version& v) {
  if (!decoder.is_object()) return;
  Json& unets = section_of(decoder, "unets");
  const size_t count = unets.is_array() ? unets.size() : 0;
  for (size_t i = 0; i < count; ++i) complete_unet(unets[i], v);
  if (v < Version{0, 26, 1}) set_absent(decoder, "dynamic_thres_percentile", 0.9);
  if (v >= Version{0, 19, 0} && v < Version{1, 12, 0})
    set_absent(decoder, "ddim_sampling_eta", 1.0);
  if (v < Version{0, 14, 1}) set_absent(decoder, "blur_sigma", Json::array({0.1, 0.2}));
  if (v < Version{0, 23, 5}) set_absent(decoder, "blur_prob", 1.0);
  if (v < Version{1, 0, 3}) {
    set_absent(decoder, "beta_schedule", "cosine");
    Json& schedule = decoder["beta_schedule"];
    if (schedule.is_string()) schedule = Json::array_t(count, schedule);
  }
  if (v < Version{0, 19, 1}) erase_keys(decoder, {"sampling_timesteps"});
  if (section_of(decoder, "lowres_downsample_mode_nearest") == false)
    erase_keys(decoder, {"lowres_downsample_mode_nearest"});
}

/// Trackers of up to 0.15.1 logged and saved by keys of their own.
void complete_tracker(Json& root) {
  Json& tracker = section_of(root, "tracker");
  erase_keys(tracker, {"tracker_type", "init_config", "wandb_entity", "wandb_project", "verbose"});
  set_absent(tracker, "log", {{"log_type", "console"}});
  set_absent(tracker, "save", Json::array({{{"save_to", "local"}}}));
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
  if (v < Version{0, 15, 2}) {
    complete_tracker(root);
    erase_keys(section_of(root, "train"), {"save_all", "save_latest", "save_best"});
  }
  if (is_prior && v < Version{1, 0, 1}) {
    erase_keys(section_of(root, "train"), {"save_every"});
    set_absent(section_of(root, "data"), "batch_size", 64);
  }
  if (is_prior ? v < Version{1, 0, 1} : v < Version{0, 15, 2}) erase_keys(root, {"load"});
  if (!is_prior) return complete_decoder(section_of(root, "decoder"), v);
  erase_keys(section_of(section_of(root, "prior"), "net"), {"attend_all_text_encodings"});
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
