// SPDX-License-Identifier: MIT
// Where the checkpoint that a run starts from lies (tracker.load of the config), and where checkpoints are
// copied to (tracker.save).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"

namespace dalle2 {

class CheckpointSource {
 public:
  explicit CheckpointSource(bool only_auto_resume) : only_auto_resume_(only_auto_resume) {}
  virtual ~CheckpointSource() = default;

  /// Finds a fault before the run starts. @throws ConfigError
  virtual void check() const = 0;
  /// The checkpoint as a local file. It may be missing if only_auto_resume().
  virtual std::string fetch() const = 0;
  /// True if it is used by auto-resumed runs only.
  bool only_auto_resume() const { return only_auto_resume_; }

 private:
  bool only_auto_resume_;
};

/// The source that the config names. @throws ConfigError for one that is not available yet
std::unique_ptr<CheckpointSource> make_checkpoint_source(const LoadConfig& config);

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
