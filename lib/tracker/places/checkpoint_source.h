// SPDX-License-Identifier: MIT
// Where the checkpoint that a run starts from lies (tracker.load of the config).
#pragma once

#include <memory>
#include <string>

#include "config/shared/tracker_config.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {

/// Where a checkpoint lies: a file of this machine, or one that is fetched. All ranks have one; rank 0
/// alone fetches, and needs a login.
class CheckpointSource {
 public:
  /// @param data_path what has to be fetched is stored there as loaded_checkpoint.pth
  /// @throws ConfigError what the config names cannot be an address
  CheckpointSource(const LoadConfig& config,
                   const std::string& data_path,
                   OwnWandbRun own_wandb_run);

  /// Finds what is wrong without the network. @throws ConfigError
  void check() const;
  /// Looks for the login of a file that has to be fetched, without the network. @throws ConfigError
  void check_login() const;
  /// True if the file has to be fetched before it can be read.
  bool is_remote() const { return file_ != nullptr; }
  /// Finds out whether it could be fetched, and fetches nothing. @throws NetworkError, ConfigError
  void check_access() const;
  /// Brings the file to path(). Does nothing for a file of this machine.
  /// @throws NetworkError, ConfigError, DataError (not what was asked for), ResourceError (disk),
  /// StoppedError
  void fetch() const;

  /// The place for people and for records: a path, or an address without its secrets.
  std::string name() const { return file_ ? file_->name() : path_; }
  /// The file on this machine, there or not (yet).
  const std::string& path() const { return path_; }
  /// True if it is used by auto-resumed runs only.
  bool only_auto_resume() const { return only_auto_resume_; }

 private:
  bool only_auto_resume_;
  std::string key_;  // of the config, for messages
  std::string path_;
  std::unique_ptr<RemoteFile> file_;  // null: a file of this machine
};

}  // namespace dalle2
