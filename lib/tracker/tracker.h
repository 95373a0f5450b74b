// SPDX-License-Identifier: MIT
// What a run leaves behind: its folder, its log, and the copies of its files.
//
//   Tracker tracker(config.tracker, placeholders, /*dummy=*/rank != 0, read_facts);
//   const StartPlan& plan = tracker.open();  // locks data_path and decides; plan.files are to be tried
//   tracker.begin({.resumed = path, ...});   // from here on the run writes
//   tracker.save_config("decoder_config.json", json);
//   tracker.log({{"Epoch", epoch}, {"Unet 0 Training Loss", loss}}, step);
//   tracker.save({.is_latest = true, .placeholders = ..., .write_checkpoint = ...});
//   tracker.finish({.outcome = RunEnd::Outcome::kDone});
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/python_format.h"
#include "base/timer.h"
#include "config/shared/tracker_config.h"
#include "tracker/log/follower.h"
#include "tracker/log/log_file.h"
#include "tracker/places/copies.h"
#include "tracker/places/remote_file.h"
#include "tracker/run_folder/run_folder.h"

namespace dalle2 {

/// One call of Tracker::save.
struct SaveRequest {
  bool is_best = false;
  bool is_latest = false;
  /// Updates are being skipped: the weights may be at fault, and the file becomes no snapshot.
  bool amid_skips = false;
  SnapshotPosition position = {};
  FormatFields placeholders = {};  ///< the tracker's names with their values of now
  /// Write a file at the path given, whole or not at all.
  std::function<void(const std::string& path)> write_checkpoint = {};
  std::function<void(const std::string& path)> write_model = {};
  std::function<void(const std::string& path)> write_lora = {};  ///< none without adapters
};

/// What a start does, as far as the folder tells.
struct StartPlan {
  StartAction action = StartAction::kBegin;
  /// What it loads: the first of these that is intact. None: it begins from zero.
  std::vector<std::string> files = {};
  std::vector<std::string> elsewhere = {};  ///< copies of the run's checkpoint, for a message

  bool resumes() const {
    return action == StartAction::kResume || action == StartAction::kAdopt ||
           action == StartAction::kGoBack;
  }
};

/// What Tracker::begin() is to know of what was loaded.
struct LoadedState {
  std::string path = {};  ///< empty: nothing was
  SnapshotPosition position = {};
  std::optional<int64_t> log_lines = {};  ///< SavedFacts::log_lines
};

class Tracker {
 public:
  /// Checks all that can be checked without writing (a dry run stops here).
  /// @param example_placeholders every name the templates may use, with a value of its kind
  /// @param dummy a rank other than 0: every call does nothing
  /// @throws ConfigError a template that cannot be one, a checkpoint of /tracker/load that is not there
  Tracker(const TrackerConfig& config,
          const FormatFields& example_placeholders,
          bool dummy,
          ReadFacts read_facts = nullptr,
          StartOptions options = {});
  ~Tracker();

  // ---- the start, in this order
  /// Locks data_path, applies the rule, asks the services, and fetches what is to be loaded. Nothing
  /// of an earlier run is changed. @throws ConfigError, DataError, NetworkError: the start is refused
  const StartPlan& open(std::function<void()> while_lock_waits = nullptr);
  /// The same for a dry run: locks, fetches and writes nothing.
  const StartPlan& look() { return plan_start(/*writes=*/false); }
  /// Another folder that the run writes into. @param key of the config. Call it before open()
  void add_folder(const std::string& folder, const char* key) {
    outside_.emplace_back(folder, key);
  }
  /// What the run is: its config, and what the loggers may know. Call it before open().
  void describe(RunFacts facts) { facts_ = std::move(facts); }
  /// From here on the run writes: run.json first. The folder of an earlier run is renamed, and what is
  /// newer than the state that was loaded is moved to abandoned/.
  /// @throws ConfigError the folder cannot be renamed, the log cannot be written; what a logger throws
  void begin(const LoadedState& loaded);

  const std::string& run_id() const { return folder_.run_id(); }
  const std::string& data_path() const { return config_.data_path; }
  /// The path of a file or folder of the run.
  std::string in_data_path(const std::string& name) const { return folder_.in(name); }
  /// The same command continues the run, without a change of the config.
  bool resumes_by_itself() const { return loggers_.auto_resume(); }

  // ---- the log
  /// A line in log.jsonl, where NaN and infinity become null, and one on the console.
  /// @param shown what of it is for people; all of it if not given, no line if empty
  void log(const LogRecord& record,
           int64_t step,
           const std::optional<ShownRecord>& shown = std::nullopt);
  bool prints_records() const { return loggers_.prints_records(); }
  /// Stores data_path/images/{step}_{section}_{i}.png, or under the names given, and a record
  /// {section: [{path, caption}]}. A picture that cannot be stored is an error in the log.
  void log_images(const std::vector<LogImage>& images, const std::string& section, int64_t step);
  /// A file of this machine is missing.
  void log_error(const std::string& message);
  /// Lines of log.jsonl so far, marks among them; a checkpoint records them.
  int64_t log_lines() const;
  /// The last call: waits for what is still to be sent, rows and files together, as long as the config
  /// allows and something moves; 30 s of silence; 10 s after a stop or a fault (Slurm kills after 30 s).
  /// What is left waits for the next start. Without this call a run counts as failed.
  void finish(const RunEnd& end);

  // ---- the files
  /// A file of the run beside its checkpoints. One that cannot be written is an error in the log, and
  /// the run continues. @param write writes the file at the path given, whole or not at all
  /// @throws as check()
  void store(const std::string& path, const std::function<void(const std::string& path)>& write) {
    attempt("storing " + path, [&] { write(path); });
  }
  /// Stores `content` as data_path/name, and as save_meta_to/name with each saver that has one.
  void save_config(const std::string& name, const std::string& content);
  /// Writes data_path/checkpoint.pth, model.pth and, of a run with adapters, lora.safetensors,
  /// keeps the first as a snapshot, then lets each saver copy the one it wants. A snapshot or saver
  /// that fails is logged and the others still save. Does nothing if neither best nor latest. One
  /// call at a time, but on any thread. @throws what the writers throw, and as check()
  void save(const SaveRequest& request);
  /// @throws ConfigError if another start has taken the run over. Looks once a second
  void check();

  /// The newest checkpoint of this run that was not saved amid skipped updates; empty if there is none.
  std::string newest_good() const;
  /// The run stands at `loaded`, after a resume or a roll-back: what is newer is abandoned.
  void go_back(const LoadedState& loaded);

  /// What the run was when it finished; empty if it did not.
  std::string finished_as() const { return folder_.record().finished; }
  /// After the last save: the run has done all it was asked for. Does nothing if this start left a
  /// file or a picture out: the next one makes it again. @throws as check(), ResourceError
  void finish_as(const std::string& what);

 private:
  const StartPlan& plan_start(bool writes);
  void add_loaded_file(bool writes);
  void open_log(std::optional<int64_t> lines);
  std::unique_lock<std::mutex> lock_log() const;
  void attempt(const std::string& what, const std::function<void()>& part);
  void note_error(const std::string& message);
  void write_error(const std::string& message);

  TrackerConfig config_;
  bool dummy_;
  ReadFacts read_facts_;
  StartOptions options_;
  RunFolder folder_;

  // The log: lines of log.jsonl and pictures. The console shows them, followers hand them on.
  Loggers loggers_;
  std::optional<LogFile> file_;  // none: before begin()
  std::optional<LogCursors> cursors_;
  mutable std::mutex mutex_;  // of what follows, and of writing to file_
  int64_t last_step_ = 0;
  std::string unnamed_run_;               // its first line is still to be written
  std::atomic<bool> has_errors_ = false;  // one that leaves a file or a picture out
  std::vector<std::unique_ptr<Follower>> followers_;

  std::unique_ptr<CheckpointSource> source_;  // null: nothing is loaded
  std::optional<Copies> copies_;              // none of a dummy
  std::vector<std::pair<std::string, const char*>> outside_;
  RunFacts facts_;
  std::optional<StartPlan> plan_;
  LockTimes lock_times_;
  bool finished_ = false;
  std::optional<Timer> since_check_;
};

}  // namespace dalle2
