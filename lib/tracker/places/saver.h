// SPDX-License-Identifier: MIT
// Where checkpoints are copied to (tracker.save of the config): files of this machine, or services
// that get them in the background.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"

namespace dalle2 {

using Deadline = std::chrono::steady_clock::time_point;

class RunFolder;
class Uploads;
struct CardFacts;

/// A file of data_path that a saver copies.
struct FileToSave {
  std::string path;
  std::string kind;                      ///< for people: "checkpoint", "model", "lora" or "config"
  std::vector<std::string> values = {};  ///< of the placeholders of the target
};

class Saver {
 public:
  explicit Saver(SaveTargets targets) : targets_(std::move(targets)) {}
  virtual ~Saver() = default;

  /// Checks the targets, filled in with `example` values.
  /// @throws ConfigError an empty one, `..` in a path, an unknown placeholder, a bad format spec, one
  /// that is taken by a file that the run keeps in data_path
  virtual void check_targets(const FormatFields& example, const std::string& data_path) const = 0;
  /// Finds out without writing whether the targets, filled in with `example`, can be written: by
  /// their folders, or by asking the service. One that does not answer until the deadline is away: a
  /// warning. @throws ConfigError naming the place, NetworkError
  virtual void check_access(const FormatFields& example, Deadline deadline) const = 0;
  /// Of those targets that are the same at every save the files of this machine.
  virtual std::vector<std::string> fixed_local_targets() const { return {}; }
  /// Whether the file at a target of this machine is of this run: only that is ever replaced.
  virtual bool may_replace(const std::string& /*path*/) const { return true; }
  /// The run may write now, and its loggers have begun.
  /// @param uploads null where no saver sends anything
  /// @param own_wandb_run the run that the W&B logger logs to, if there is one
  virtual void init(Uploads* uploads, const std::optional<std::string>& own_wandb_run) = 0;
  /// Copies a file to `target`, or sees to that.
  /// @throws anything: the tracker logs it and continues
  virtual void save_file(const FileToSave& file, const std::string& target) = 0;
  /// Whether it sends files in the background.
  virtual bool is_remote() const { return false; }

  /// Sends a page on what was trained, once, to a place that wants one and has none.
  /// @param scratch a path that it may be written to
  virtual void send_card(const CardFacts& /*facts*/, const std::string& /*scratch*/) {}

  const SaveTargets& targets() const { return targets_; }

 private:
  SaveTargets targets_;
};

/// "checkpoint", "model" or "lora".
std::string save_type_name(SaveType type);
/// The file of data_path that holds it.
const char* own_file(SaveType type);

/// The saver of a config. @param folder of the run, which has to outlive it
/// @throws ConfigError what it names cannot be a place
std::unique_ptr<Saver> make_saver(const SaveConfig& config, const RunFolder& folder);

}  // namespace dalle2
