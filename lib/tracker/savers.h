// SPDX-License-Identifier: MIT
// Where checkpoints are copied to.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"

namespace dalle2 {

class Saver {
 public:
  explicit Saver(SaveTargets targets) : targets_(std::move(targets)) {}
  virtual ~Saver() = default;

  /// Finds out without writing whether the targets, filled in with `example`, can be written.
  /// @throws ConfigError naming the place
  virtual void check_writable(const FormatFields& example) const = 0;
  virtual void init() = 0;
  /// Copies a local file to `target`; `kind` names it for people beside its file name
  /// ("checkpoint").
  /// @throws anything: the tracker logs it and goes on
  virtual void save_file(const std::string& local_path,
                         const std::string& target,
                         const std::string& kind) = 0;

  const SaveTargets& targets() const { return targets_; }

 private:
  SaveTargets targets_;
};

/// "checkpoint", "model" or "lora".
std::string save_type_name(SaveType type);

/// Checks the targets of a saver by filling in `example` values.
/// @throws ConfigError none given, an empty one, `..` in a path, an unknown placeholder, a bad
/// format spec
void check_save_targets(const SaveTargets& targets, const FormatFields& example);

/// The saver of a config. @throws ConfigError for one that is not available yet
std::unique_ptr<Saver> make_saver(const SaveConfig& config);

}  // namespace dalle2
