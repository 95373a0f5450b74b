// SPDX-License-Identifier: MIT
// How a config of any kind is read. A kind adds its config, with
//   static constexpr const char* kKind;          its root key
//   static FormatFields placeholders();          what the names of its checkpoints may hold
// and a function that checks what was read and plans the run.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "config/kinds.h"
#include "config/reading/json_text.h"
#include "config/reading/reader.h"
#include "config/reading/writer.h"
#include "config/shared/old_configs.h"

namespace dalle2 {

/// @param json of the config
template <class Config>
NamedOutside named_outside(const Config& config, const Json& json) {
  NamedOutside named{.config = json, .tracker = &config.tracker};
  if constexpr (std::is_same_v<decltype(config.data), ShardDataConfig>) named.shards = &config.data;
  if constexpr (requires { config.evaluate; }) named.metrics = &config.evaluate;
  if constexpr (requires { config.clip.tokenizer; }) named.tokenizer = &config.clip.tokenizer;
  return named;
}

/// Reads `json`; `origin` names it in messages. `check(root, loaded, faults)` gets the root with
/// its overrides and `loaded.config`, whose faults so far are known; it may change both config and
/// plan. @throws ConfigError listing every fault
template <class LoadedConfig, class Check>
LoadedConfig parse_config(const std::string& json,
                          const std::string& origin,
                          const ReadOptions& options,
                          Check check) {
  using Config = decltype(LoadedConfig::config);
  ReadFindings findings;
  Faults& faults = findings.faults;
  findings.placeholders = Config::placeholders();
  findings.defaults = to_json(Config());
  Json root = parse_root(json, origin, faults);
  refuse_other_programs(root, origin);
  const bool file_allows_pipe = allows_pipe(root);
  for (const std::string& assignment : options.overrides)
    findings.overridden.push_back(apply_override(root, assignment));
  const bool is_model_alone = options.part == ConfigPart::model ||
                              (options.part == ConfigPart::stored && !root.contains("data"));
  std::vector<std::string> parts;
  if (is_model_alone) parts = keep_section(root, Config::kKind);
  LoadedConfig loaded;
  if constexpr (requires { loaded.config.written_by; }) {
    if (!options.written_by.empty() && !names_version(root))
      root["written_by"] = options.written_by;
    complete_old_config(root, Config::kKind, origin);
  }
  refuse_other_kinds(root, Config::kKind, findings);
  Reader(findings).read_struct(root, "", loaded.config, known_root_keys());
  if constexpr (requires { loaded.config.data.allow_pipe; }) {
    if (options.no_commands) {
      loaded.config.data.allow_pipe = false;
    } else {
      check_commands(loaded.config.data, file_allows_pipe, faults);
    }
  }
  check(std::as_const(root), loaded, faults);
  if (is_model_alone) faults.keep_under(parts);
  // Where the run logged and saved, and in which environment, says nothing of its model.
  if (options.part == ConfigPart::stored) faults.drop_under("/tracker");
  if (options.strict) faults.promote_warnings();
  if (options.check_available) {
    for (const Fault& fault : findings.unavailable) faults.error(fault.pointer, fault.text);
  }
  if (options.find_missing)
    options.find_missing(named_outside(loaded.config, to_json(loaded.config)), faults);
  faults.throw_if_any(origin);
  loaded.raw_json = options.overrides.empty() ? json : root.dump(2) + "\n";
  loaded.full_json = to_json(loaded.config).dump(2) + "\n";
  for (const Fault& warning : faults.warnings()) loaded.warnings.push_back(fault_line(warning));
  return loaded;
}

/// The row of a kind. @tparam Config with its kKind @tparam parse reads a text: (json, origin, options)
/// @param name, sample_input as in ConfigKind
template <class Config, auto parse>
ConfigKind kind_row(std::string name,
                    std::function<std::string(const Json& config)> sample_input = {}) {
  return {.key = Config::kKind,
          .name = std::move(name),
          .fill_in =
              [](const std::string& json, const std::string& origin, const ReadOptions& options) {
                return parse(json, origin, options).full_json;
              },
          .schema = [] { return struct_schema(Config()); },
          .sample_input = std::move(sample_input)};
}

}  // namespace dalle2
