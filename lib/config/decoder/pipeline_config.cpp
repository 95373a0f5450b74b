// SPDX-License-Identifier: MIT
#include "config/decoder/pipeline_config.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/log.h"
#include "config/reading/json_text.h"
#include "config/reading/reader.h"

namespace dalle2 {
namespace {

constexpr const char* kNotKept =
    "what it fetches is not kept: download the file once, and give its path";
/// Keys that have no effect here, and why.
constexpr std::pair<const char*, const char*> kIdleKeys[] = {
    {"cache_dir", kNotKept},
    {"filename_override", kNotKept},
    {"checksum_file_path", "no file is compared with it: do so yourself, e.g. by `sha256sum FILE`"},
    {"clip", "--clip names the CLIP"},
    {"devices", "--device names the device"},
    {"load_on_cpu", "the weights wait in main memory in any case"},
    {"strict_loading", "weights that do not fit are refused in any case"}};

/// Null is the default of every key there, too. @param found takes the idle keys that have a value
void remove_idle_keys(Json& value, std::set<std::string>& found) {
  if (value.is_object()) {
    for (auto key = value.begin(); key != value.end();)
      key = key->is_null() ? value.erase(key) : std::next(key);
    for (const auto& [key, why] : kIdleKeys) {
      if (value.erase(key) > 0) found.insert(key);
    }
  }
  if (!value.is_structured()) return;
  for (Json& each : value) remove_idle_keys(each, found);
}

}  // namespace

PipelineConfig load_pipeline_config(const std::string& path) {
  ReadFindings findings;
  Faults& faults = findings.faults;
  Json root = parse_root(read_config_file(path), path, faults);
  std::set<std::string> idle;
  remove_idle_keys(root, idle);
  PipelineConfig config;
  Reader(findings).read_struct(root, "", config);
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < config.decoder.unet_sources.size(); ++i) {
    const PipelineSource& source = config.decoder.unet_sources[i];
    numbers.insert(numbers.end(), source.unet_numbers.begin(), source.unet_numbers.end());
    const auto check_count = [&](size_t given, const char* key) {
      if (given == 0 || given == source.unet_numbers.size()) return;
      faults.error(fmt::format("/decoder/unet_sources/{}/{}", i, key),
                   fmt::format("expected a value for each of unet_numbers ({}), got {}",
                               source.unet_numbers.size(),
                               given));
    };
    check_count(source.default_cond_scale.size(), "default_cond_scale");
    check_count(source.default_sample_timesteps.size(), "default_sample_timesteps");
  }
  std::ranges::sort(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == static_cast<int64_t>(i) + 1) continue;
    faults.error(
        "/decoder/unet_sources",
        fmt::format("unet_numbers of all sources must be 1 to {}, each once", numbers.size()));
    break;
  }
  faults.promote_warnings();
  faults.throw_if_any(path);
  for (const auto& [key, why] : kIdleKeys) {
    if (idle.contains(key)) log_warning("config", "{}: \"{}\" has no effect: {}", path, key, why);
  }
  return config;
}

}  // namespace dalle2
