// SPDX-License-Identifier: MIT
#include "config/decoder/pipeline_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "config/reading/json_text.h"
#include "config/reading/reader.h"

namespace dalle2 {
namespace {

/// Keys that have no effect here.
constexpr const char* kIdleKeys[] = {"cache_dir",
                                     "filename_override",
                                     "checksum_file_path",
                                     "clip",
                                     "devices",
                                     "load_on_cpu",
                                     "strict_loading"};

/// Null is the default of every key there, too. @param found takes the idle keys that have a value
void remove_idle_keys(Json& value, std::set<std::string>& found) {
  if (value.is_object()) {
    for (auto key = value.begin(); key != value.end();)
      key = key->is_null() ? value.erase(key) : std::next(key);
    for (const char* key : kIdleKeys)
      if (value.erase(key) > 0) found.insert(key);
  }
  if (!value.is_structured()) return;
  for (Json& each : value) remove_idle_keys(each, found);
}

}  // namespace

PipelineConfig load_pipeline_config(const std::string& path) {
  ReadFindings findings;
  Faults& faults = findings.faults;
  Json root = parse_root(read_config_file(path), path, faults);
  for (const char* key : {"/decoder/unets", "/prior/net", "/data", "/train"}) {
    if (!root.contains(Json::json_pointer(key))) continue;
    throw ConfigError(
        "{}: this is a training config (it has {}), and --pipeline takes one of dalle2-laion\n  Give "
        "it as --config with its --checkpoint, or as --prior-config with its --prior.",
        path,
        key);
  }
  std::set<std::string> idle;
  remove_idle_keys(root, idle);
  PipelineConfig config;
  Reader(findings).read_struct(root, "", config);
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < config.decoder.unet_sources.size(); ++i) {
    const PipelineSource& source = config.decoder.unet_sources[i];
    numbers.insert(numbers.end(), source.unet_numbers.begin(), source.unet_numbers.end());
    const auto check_count = [&](size_t given, const char* key) {
      if (given == 0 || source.unet_numbers.empty() || given == source.unet_numbers.size()) return;
      faults.error(fmt::format("/decoder/unet_sources/{}/{}", i, key),
                   fmt::format("expected a value for each of unet_numbers ({}), got {}",
                               source.unet_numbers.size(),
                               given));
    };
    check_count(source.default_cond_scale.size(), "default_cond_scale");
    check_count(source.default_sample_timesteps.size(), "default_sample_timesteps");
  }
  std::ranges::sort(numbers);
  std::vector<int64_t> wanted(numbers.size());
  std::iota(wanted.begin(), wanted.end(), 1);
  if (numbers != wanted)
    faults.error(
        "/decoder/unet_sources",
        fmt::format("unet_numbers of all sources must be 1 to {}, each once", numbers.size()));
  faults.promote_warnings();
  faults.throw_if_any(path);
  if (!idle.empty())
    log_warning(
        "config",
        "{}: without effect here: {}\n  --clip and --device name the CLIP and the device; what is "
        "fetched is neither kept nor compared with a checksum.",
        path,
        fmt::join(idle, ", "));
  return config;
}

}  // namespace dalle2
