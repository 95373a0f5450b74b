// SPDX-License-Identifier: MIT
// What reading a config takes and gives, for every kind of run.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dalle2 {

/// Options of reading a file.
struct ReadOptions {
  std::vector<std::string>
      overrides;                ///< `--set`: "/train/lr=3e-4", value parsed as JSON, else a string
  bool strict = false;          ///< warnings become errors
  bool check_available = true;  ///< refuse what the program cannot do yet
  /// The config only describes a model or a run, as that in a checkpoint does: it runs no commands,
  /// whatever it says of them.
  bool no_commands = false;
  /// Gives the config that a checkpoint of a kind carries, from which a section is taken that the
  /// file leaves out: this layer opens no checkpoints. Empty: the file has to hold the section.
  /// @throws ConfigError, DataError
  std::function<std::string(const std::string& kind, const std::string& checkpoint)>
      config_of_checkpoint = nullptr;
};

/// A file that was read: the config, its warnings, and what else belongs to it.
template <class Config, class Plan>
struct Loaded {
  Config config;
  Plan plan;
  std::string raw_json;   ///< the file as it stands (after no override), for the echo at start-up
  std::string full_json;  ///< the effective config, defaults filled, as --dump-config prints it
  std::vector<std::string> warnings;
};

/// The kind of run that a file describes, by its root key: "decoder", "prior" or "vae".
/// @throws ConfigError for a file that cannot be read, one with no such key or with several, and
/// for kinds that are not available yet
std::string config_kind(const std::string& path);

}  // namespace dalle2
