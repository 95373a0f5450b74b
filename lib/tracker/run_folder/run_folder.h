// SPDX-License-Identifier: MIT
// The folder of a run: whose it is, and what each start does with it (docs/resuming.md).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tracker/run_folder/run_record.h"

namespace dalle2 {

class CheckpointSource;

/// What lies in data_path.
enum class FolderState {
  kEmpty,       ///< absent, or without run.json and without a file that a run would write
  kFiles,       ///< no run.json, but files or folders that a run would write
  kCheckpoint,  ///< the same, with a checkpoint.pth that can be loaded
  kUnreadable,  ///< a run.json that cannot be read
  kUnsaved,     ///< a run that has saved nothing yet
  kSaved,       ///< a run that has saved
};

struct StartFacts {
  FolderState folder = FolderState::kEmpty;
  bool auto_resume = false;
  bool overwrite = false;  ///< /tracker/overwrite_data_path
  bool fresh = false;      ///< --fresh
  /// The job of this run, started again: its --fresh or --back-to is done.
  bool restarted_job = false;
  bool back_to = false;  ///< --back-to
  /// /tracker/load, of all runs, names neither a file of the run in data_path nor what it began from.
  bool load_is_other = false;
  bool load_is_inside = false;  ///< the file of /tracker/load lies in data_path
  bool has_intact = true;       ///< a file of the run that it could resume from
};

enum class StartAction {
  kBegin,         ///< in an empty folder
  kBeginInPlace,  ///< under the id of the run, which has saved nothing
  kAdopt,         ///< resume checkpoint.pth, which makes the folder a run
  kSetAside,      ///< rename the whole folder, and begin
  kResume,
  kGoBack,  ///< to the file of --back-to, and resume
  // What ends the start:
  kRefuseFiles,
  kRefuseExists,
  kRefuseLoad,
  kRefuseLoadInside,
  kRefuseBack,
  kRefuseDamaged,
  kRefuseUnreadable,
};

StartAction decide(const StartFacts& facts);

/// A row of the table: what leads to an action, and what it does, for people.
struct StartRule {
  StartAction action;
  const char* folder;
  const char* auto_resume;
  const char* does;
};
/// In the order in which they apply.
const std::vector<StartRule>& start_rules();
const StartRule& rule_of(StartAction action);

/// What the command and the config ask of a start.
struct StartOptions {
  bool fresh = false;        ///< --fresh
  std::string back_to = {};  ///< --back-to; empty: none
  // What must not be renamed:
  std::string config_path = {};        ///< --config
  std::vector<std::string> data = {};  ///< texts of /data, paths among them
  // Of the config, as the tracker reads it:
  bool auto_resume = false, overwrite = false;
  const CheckpointSource* load = nullptr;  ///< /tracker/load; null: none
};

/// For a run that has saved and has nothing to resume from. @param elsewhere copies of its checkpoint
std::string nothing_intact(const std::string& data_path, const std::vector<std::string>& elsewhere);

class RunFolder {
 public:
  RunFolder(std::string path, ReadFacts read_facts, const SnapshotRules& rules);

  const std::string& path() const { return path_; }
  std::string in(const std::string& name) const;
  /// The id of the run; empty before take().
  const std::string& run_id() const { return record_.id; }
  const RunRecord& record() const { return record_; }

  /// Locks the folder for as long as this object lives. @throws as RunLock
  void lock(const LockTimes& times);
  /// Looks at the folder, and applies the rule. Writes nothing.
  /// @throws ConfigError, DataError for an action that ends the start, but for kRefuseDamaged
  StartAction decide(const StartOptions& options);
  /// The files that a resume tries, in this order: checkpoint.pth, snapshots from the newest on, best.pth.
  std::vector<std::string> checkpoints() const;
  /// Whether the run saved the file at `path`. False for a file that names no run.
  bool has_saved(const std::string& path) const;
  /// Whether the run may replace the file at `path`: it is of this run, or lies in its folder.
  bool owns(const std::string& path) const;

  /// @throws ConfigError why one rename(2) cannot set the folder aside, and what to do
  void check_can_be_set_aside(const StartOptions& options) const;
  /// Renames the whole folder, makes and locks a new one. @throws ConfigError
  void set_aside(const LockTimes& times);
  /// Makes the run this process's: writes run.json with a new token. @return whether the folder is a
  /// copy of another, which then gets an id of its own
  bool take(StartAction action, const std::string& began_from);
  /// Before a file or a line is written. @throws ConfigError if another start has taken the run over
  void check_token() const;

  /// `file` becomes checkpoint.pth.
  void go_back_to(const std::string& file);
  /// Moves snapshots and averages from after `position` to abandoned/.
  void abandon_newer(const SnapshotPosition& position);
  /// Keeps the checkpoint as the snapshot of `position`, as the best one too if it is, and removes what the
  /// rules do not keep. Does nothing without rules. @throws ResourceError, DataError
  void keep_snapshot(const SnapshotPosition& position, bool is_best);

  /// Changes run.json, if anything in it is new.
  void note(const std::function<void(RunRecord& record)>& change);
  /// The run has written its config to `path`, outside. Known copies may be replaced.
  void note_copy(const std::string& path, const std::string& content);

  /// Makes `folder`, outside of this one, the run's: it is absent, empty or holds a run.json of it.
  /// @param key of the config, for messages @throws ConfigError
  void check_outside(const std::string& folder, const char* key) const;
  void take_outside(const std::string& folder) const;

 private:
  FolderState look();
  std::optional<SavedFacts> facts_in(const std::string& path) const;
  const std::string& id_now() const;
  bool is_inside(const std::string& path) const;
  bool wrote_copy(const std::string& path) const;
  std::vector<std::string> own_names() const;
  bool holds_others() const;
  StartFacts facts_of(const StartOptions& options);
  [[noreturn]] void refuse(StartAction action, const StartOptions& options);
  std::string snapshot(const SnapshotPosition& position) const;
  [[noreturn]] void refuse_to_set_aside(const std::string& why) const;
  std::string free_abandoned(const std::string& path) const;
  void abandon(const std::string& path) const;
  void sweep_parts() const;

  std::string path_, real_;  // real_: without links
  ReadFacts read_facts_;
  const SnapshotRules rules_;
  std::unique_ptr<RunLock> lock_;
  std::optional<RunRecord> found_;  // of an earlier start
  std::string fault_;               // of its run.json
  RunRecord record_;                // of this one, after take()
  std::string planned_id_;          // before: of the run that the start resumes, or begins in place
  bool adopts_ = false;             // StartAction::kAdopt
  mutable std::mutex mutex_;        // of record_: a save runs in the background
};

}  // namespace dalle2
