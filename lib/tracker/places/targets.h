// SPDX-License-Identifier: MIT
// What the targets of a saver may be (/tracker/save).
#pragma once

#include <string>
#include <vector>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"

namespace dalle2 {

/// A target, filled in.
struct FilledTarget {
  const char* key;
  std::string target;  ///< as the config has it
  std::string path;
};

/// @throws ConfigError an unknown placeholder, a bad format spec
std::vector<FilledTarget> filled_targets(const SaveTargets& targets, const FormatFields& example);

/// Of checkpoints those that are the same at every save: without placeholders.
std::vector<std::string> fixed_targets(const SaveTargets& targets);

/// Of files on this machine. @throws ConfigError as filled_targets(); an empty one, `..` in a path, one
/// that is taken by a file that the run keeps in data_path
void check_local_targets(const SaveTargets& targets,
                         const FormatFields& example,
                         const std::string& data_path);
/// Of names below a place at a service. @throws ConfigError
void check_remote_targets(const SaveTargets& targets,
                          const FormatFields& example,
                          const std::string& place);

/// "checkpoint", "model" or "lora".
std::string save_type_name(SaveType type);
/// The file of data_path that holds it.
const char* own_file(SaveType type);

}  // namespace dalle2
