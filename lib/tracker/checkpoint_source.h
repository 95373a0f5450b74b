// SPDX-License-Identifier: MIT
// Where the checkpoint that a run starts from lies: tracker.load of the config.
#pragma once

#include <memory>
#include <string>

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

}  // namespace dalle2
