// SPDX-License-Identifier: MIT
#include "config/decoder/pipeline_config.h"

#include <algorithm>
#include <array>

#include "config/reading/json_text.h"
#include "config/reading/reader.h"

namespace dalle2 {
namespace {

/// Keys that have no effect here: --device and --clip say it, a file is known by its path, and
/// weights that do not fit are refused.
constexpr std::array<const char*, 7> kIdleKeys = {"cache_dir",
                                                  "filename_override",
                                                  "checksum_file_path",
                                                  "clip",
                                                  "devices",
                                                  "load_on_cpu",
                                                  "strict_loading"};

void remove_idle_keys(Json& value) {
  if (value.is_object()) {
    for (const char* key : kIdleKeys) value.erase(key);
  }
  if (!value.is_structured()) return;
  for (Json& each : value) remove_idle_keys(each);
}

}  // namespace

PipelineConfig load_pipeline_config(const std::string& path) {
  ReadFindings findings;
  Faults& faults = findings.faults;
  Json root = parse_root(read_config_file(path), path, faults);
  remove_idle_keys(root);
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
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == static_cast<int64_t>(i) + 1) continue;
    faults.error(
        "/decoder/unet_sources",
        fmt::format("unet_numbers of all sources must be 1 to {}, each once", numbers.size()));
    break;
  }
  faults.promote_warnings();
  faults.throw_if_any(path);
  return config;
}

}  // namespace dalle2
