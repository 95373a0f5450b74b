// SPDX-License-Identifier: MIT
// The kinds of run, as far as their configs go. lib/run/kinds.h has what the program does with them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/reading/json_text.h"

namespace dalle2 {

class Faults;
struct ClipTokenizerConfig;
struct DecoderEvaluateConfig;
struct ReadFindings;
struct ShardDataConfig;
struct TrackerConfig;

/// What names files, services and hosts in a config. Null: a kind has no such section.
struct NamedOutside {
  const Json& config;  ///< all of it, with every default
  const TrackerConfig* tracker = nullptr;
  const ShardDataConfig* shards = nullptr;
  const DecoderEvaluateConfig* metrics = nullptr;
  const ClipTokenizerConfig* tokenizer = nullptr;
};

/// What of a config counts.
enum class ConfigPart {
  whole,
  model,   ///< the section of the model, its version, and how pictures are read: what is drawn with
  stored,  ///< the same of a config without `data`, as `convert` stores it; else all of it
};

struct ReadOptions {
  std::vector<std::string>
      overrides;                ///< `--set`: "/train/lr=3e-4", value parsed as JSON, else a string
  bool strict = false;          ///< warnings become errors
  bool check_available = true;  ///< refuse what cannot be had
  /// The config only describes a model or a run, as that in a checkpoint does: it runs no commands,
  /// whatever it says of them.
  bool no_commands = false;
  /// The version of dalle2-pytorch that wrote what the config describes, where it does not say so; empty: 1.15.6.
  std::string written_by = {};
  ConfigPart part = ConfigPart::whole;
  /// Gives the config that a checkpoint of a kind carries, from which a section is taken that the
  /// file leaves out: this layer opens no checkpoints. Empty: the file has to hold the section.
  /// @throws ConfigError, DataError
  std::function<std::string(const std::string& kind, const std::string& checkpoint)>
      config_of_checkpoint = nullptr;
  /// Of the file that a /decoder/clip/model or /prior/clip/model names. Empty: it is not asked for.
  /// @throws ConfigError for a name without a file, DataError
  std::function<std::string(const std::string& model)> sha256_of_clip = nullptr;
  /// Adds what is missing outside of the config to its faults, so that one report has all.
  /// Empty: nothing is looked for.
  std::function<void(const NamedOutside&, Faults&)> find_missing = nullptr;
};

/// A file that was read: the config, its warnings, and what else belongs to it.
struct NoPlan {};
template <class Config, class Plan = NoPlan>
struct Loaded {
  Config config;
  Plan plan;
  std::string raw_json;   ///< the file as it stands; with overrides its values, without comments
  std::string full_json;  ///< the effective config, defaults filled, as --dump-config prints it
  std::vector<std::string> warnings;
};

/// A config from a file. Every fault is reported at once, each with JSON pointer, expectation and
/// find. @tparam parse reads a text: (json, origin, options); `origin` names it in messages
/// @throws ConfigError "FILE: N problems\n  /pointer: ..."
template <auto parse>
auto load_config(const std::string& path, const ReadOptions& options) {
  return parse(read_config_file(path), path, options);
}

/// The kind of run that a file describes, by its root key, e.g. "decoder".
/// @throws ConfigError for a file that cannot be read, one with no such key or with several
std::string config_kind(const std::string& path);

/// A kind of run. Whoever adds one adds a row to config_kinds().
struct ConfigKind {
  std::string key;   ///< its root key, which names it in messages too
  std::string name;  ///< "a decoder"
  /// The config in a text with every default filled in. @param origin names it @throws ConfigError
  std::function<std::string(
      const std::string& json, const std::string& origin, const ReadOptions& options)>
      fill_in = {};
  std::function<Json()> schema = {};  ///< of the root
  /// What `sample` takes beside a checkpoint of that config, for a model card: "--num 16". Null for
  /// a kind that draws nothing by itself.
  std::function<std::string(const Json& config)> sample_input = {};
};

/// In the order in which messages name them. Tests may add rows.
std::vector<ConfigKind>& config_kinds();
/// The row of a kind. @throws ConfigError for none
const ConfigKind& config_kind_of(const std::string& key);

/// Keys of all kinds, for messages: "decoder", "prior", "vae" and "clip", in quotes.
std::string available_kinds();

/// Root keys that no reader calls unknown: those of all kinds, and "$schema", by which editors find
/// the schema.
std::vector<std::string> known_root_keys();

/// @throws ConfigError for a file of another program
void refuse_other_programs(const Json& root, const std::string& path);

/// Adds a fault for each root key of a kind other than `kind`.
void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings);

/// JSON Schema 2020-12 of a kind. @throws ConfigError for no kind
std::string config_schema(const std::string& kind);

}  // namespace dalle2
