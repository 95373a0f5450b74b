// SPDX-License-Identifier: MIT
// Where the checkpoint that a run starts from lies (tracker.load of the config).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/shared/tracker_config.h"

namespace dalle2 {

/// Where a checkpoint lies. All ranks have one; rank 0 alone fetches, and needs a login.
class CheckpointSource {
 public:
  explicit CheckpointSource(bool only_auto_resume) : only_auto_resume_(only_auto_resume) {}
  virtual ~CheckpointSource() = default;

  /// Finds what is wrong without the network. @throws ConfigError
  virtual void check() const = 0;
  /// Looks for the login of a file that has to be fetched, without the network. @throws ConfigError
  virtual void check_login() const {}
  /// True if the file has to be fetched before it can be read.
  virtual bool is_remote() const = 0;
  /// Finds out whether it could be fetched, and fetches nothing. @throws NetworkError, ConfigError
  virtual void check_access() const = 0;
  /// Brings the file to path(). Does nothing for a file of this machine.
  /// @throws NetworkError, ConfigError, DataError (not what was asked for), ResourceError (disk),
  /// StoppedError
  virtual void fetch() = 0;

  /// The place for people and for records: a path, or an address without its secrets.
  virtual std::string name() const = 0;
  /// The file on this machine, there or not (yet).
  virtual std::string path() const = 0;
  /// True if it is used by auto-resumed runs only.
  bool only_auto_resume() const { return only_auto_resume_; }

 private:
  bool only_auto_resume_;
};

/// The run that the W&B logger logs to, "entity/project/run_id"; none as long as it has no id.
using OwnWandbRun = std::function<std::optional<std::string>()>;

/// The source that the config names.
/// @param data_path what has to be fetched is stored there as loaded_checkpoint.pth
/// @throws ConfigError what the config names cannot be an address
std::unique_ptr<CheckpointSource> make_checkpoint_source(const LoadConfig& config,
                                                         const std::string& data_path,
                                                         OwnWandbRun own_wandb_run = nullptr);

}  // namespace dalle2
