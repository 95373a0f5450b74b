// SPDX-License-Identifier: MIT
// Keeps what a run leaves behind: log.jsonl, pictures, checkpoints and their copies,
// auto_resume.json.
//
//   Tracker tracker(config.tracker, placeholders, /*dummy=*/rank != 0);  // writes nothing
//   tracker.init();                                                      // locks data_path
//   if (tracker.can_recall()) for (const std::string& path : tracker.recall_candidates()) ...
//   taken_up ? tracker.go_on(path) : tracker.begin_anew();  // opens log.jsonl
//   tracker.save_config("decoder_config.json", json);
//   tracker.log({{"Epoch", epoch}, {"Unet 0 Training Loss", loss}}, step);
//   tracker.save({.is_latest = true, .placeholders = ..., .write_checkpoint = ...});
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
#include "config/shared/tracker_config.h"
#include "tracker/log/log_file.h"
#include "tracker/log/loggers.h"
#include "tracker/log/record.h"
#include "tracker/places/checkpoint_source.h"
#include "tracker/places/saver.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/own_files.h"
#include "tracker/run_folder/resume_order.h"
#include "tracker/run_folder/run_files.h"
#include "tracker/run_folder/run_lock.h"
#include "tracker/run_folder/snapshots.h"

namespace dalle2 {

/// One call of Tracker::save.
struct SaveRequest {
  bool is_best = false;
  bool is_latest = false;
  /// Updates are being skipped: the weights may be at fault. The last file that was saved outside
  /// such a streak stays as snapshots/last_good.pth, and this one becomes no snapshot.
  bool amid_skips = false;
  /// The run went back: snapshots after `position` are of a branch that it has left, and go.
  bool went_back = false;
  SnapshotPosition position = {};
  FormatFields placeholders =
      {};  ///< the names the tracker was built with, with their values of now
  /// Write a file at the path given, whole or not at all.
  std::function<void(const std::string& path)> write_checkpoint = {};
  std::function<void(const std::string& path)> write_model = {};
  std::function<void(const std::string& path)> write_lora = {};  ///< none without adapters
};

/// Names and JSON texts that are stored in a checkpoint beside the state.
using SaveMetadata = std::vector<std::pair<std::string, std::string>>;

/// How long a run waits at its end for what loggers have still to send. Slurm kills 30 s after it asks
/// for a stop.
inline constexpr double kSecondsToFinish = 120, kSecondsToStop = 20;

/// What Tracker::init() is to know of the process.
struct TrackerStart {
  /// Of a dummy: what auto_resumed() is on rank 0, since the file may change before this rank could
  /// look.
  bool auto_resumed_on_main = false;
  /// Called while a lock of data_path is waited for that a lost machine may have left; it may throw.
  /// Null: such a lock is an error at once.
  std::function<void()> while_lock_waits = nullptr;
};

class Tracker {
 public:
  /// Checks all that can be checked without writing (a dry run stops here).
  /// @param example_placeholders every name the templates may use, with a value of its kind
  /// @param dummy a rank other than 0: it may recall; every other call does nothing
  /// @param read_facts tells which run saved a file, and when; null: no file says
  /// @throws ConfigError data_path exists without overwrite_data_path, no saver, a template with
  /// `..` or
  ///         an unknown placeholder, a checkpoint of /tracker/load that is not there
  Tracker(const TrackerConfig& config,
          const FormatFields& example_placeholders,
          bool dummy,
          ReadFacts read_facts = nullptr);
  /// Releases what hold() and init() lock, as RunLock does.
  ~Tracker();
  Tracker(Tracker&&) noexcept;
  Tracker& operator=(Tracker&&) = delete;

  /// What the loggers may know of the run. Call it before go_on() or begin_anew().
  void describe(RunFacts facts) { facts_ = std::move(facts); }

  /// Finds out whether data_path and the savers' targets can be written, and whether the services of
  /// loggers and savers take the login; leaves nothing behind.
  /// @throws ConfigError naming the place; NetworkError a refused login
  void check_writable() const;
  /// For a dry run: whether what /tracker/load names could be fetched, if the run would do that.
  /// @throws NetworkError, ConfigError
  void check_source() const;

  /// Makes and locks data_path and what hold() names, sweeps what an interrupted run left, reads auto_resume.json.
  /// Nothing that an earlier run left is changed or moved yet: whether this run continues with it is
  /// known when its checkpoint was read. Then go_on() or begin_anew() is called, once; before that
  /// nothing can be logged or saved. What /tracker/load names is fetched, if it is not on this
  /// machine and is needed. A second call does nothing.
  /// @throws ConfigError data_path is in use by another run or cannot be written, a saver's target
  ///         cannot be written, auto_resume.json is of another logger type; NetworkError what is
  ///         loaded cannot be fetched, or a service refuses what would be saved
  void init(const TrackerStart& start = {});

  /// The run starts from zero (adapters on a base do too). What another run left in data_path is
  /// renamed (checkpoint.pth to checkpoint.1.pth), and so is, before its first write there, what
  /// is at a saver's target; a line says where it is and how to resume from it instead.
  /// @param reason why, for the log; empty: told only if the user might expect otherwise
  /// @throws ConfigError something cannot be renamed, or the log cannot be written; what a logger throws
  /// that cannot begin: then all is named as before
  void begin_anew(const std::string& reason = "");

  /// The run resumes from `checkpoint`, one of recall_candidates(). If that is of the run in
  /// data_path, its log is continued and later saves replace its files; else what is in data_path
  /// and at the targets is another run's and is renamed, as by begin_anew(). `checkpoint` itself may
  /// be replaced. A copy of a run's folder gets an id and logs of its own. @throws as begin_anew()
  void go_on(const std::string& checkpoint);

  /// Whether the file of /tracker/load has to be fetched before it can be read.
  bool loads_from_afar() const { return source_ != nullptr && source_->is_remote(); }
  /// The same command continues the run, without a change of the config.
  bool resumes_by_itself() const {
    return source_ != nullptr && loggers_->auto_resume() && config_.overwrite_data_path;
  }

  /// Before init(), or in its place in a dry run: finds out whether this run would continue with an
  /// earlier one. Writes nothing and locks nothing.
  void look_for_earlier_run();
  /// Names of what an earlier run left in data_path, which begin_anew() would rename.
  std::vector<std::string> earlier_files() const;
  /// @throws ConfigError if a start from zero would rename, as files of an earlier run, what the config
  /// (add_save_metadata()) reads
  void check_renames() const;
  /// The same for a start from `checkpoint` ("" for none), unless it resumes the run that is there.
  void check_start(const std::string& checkpoint) const;

  /// True if auto_resume.json of an earlier start was found, and auto-resume is on.
  bool auto_resumed() const { return auto_resumed_; }
  /// The id of the run; empty before go_on() or begin_anew(), and of a dummy.
  const std::string& run_id() const { return run_id_; }
  const std::string& data_path() const { return config_.data_path; }
  /// The path of a file or folder of the run.
  std::string in_data_path(const std::string& name) const;

  /// A line in log.jsonl, where NaN and infinity become null, and what the loggers make of it.
  /// @param shown what of it is for people; all of it if not given, no line if empty
  void log(const LogRecord& record,
           int64_t step,
           const std::optional<ShownRecord>& shown = std::nullopt);
  /// Whether log() prints a line for people.
  bool prints_records() const { return loggers_->prints_records(); }
  /// Stores data_path/images/{step}_{section}_{i}.png, or under the names given, and a record
  /// {section: [{path, caption}]}. A picture that cannot be stored is an error in the log, and the
  /// run continues.
  void log_images(const std::vector<LogImage>& images, const std::string& section, int64_t step);
  void log_error(const std::string& message);
  /// The last call: the loggers send what is left, for kSecondsToFinish after the end of a run and
  /// for kSecondsToStop after a stop or a fault. Without it a run counts as failed.
  void finish(const RunEnd& end);

  /// A file of the run beside its checkpoints: makes its folder, sets aside what another run left at
  /// `path`, and records it as this run's. One that cannot be written is an error in the log, and the
  /// run continues.
  /// @param write writes the file at the path given, whole or not at all
  /// @throws as check_lock()
  void store(const std::string& path, const std::function<void(const std::string& path)>& write);
  /// If the run starts from zero, the files that the run in data_path has recorded as its own and
  /// that `is_meant` are removed, not set aside. Call it before init().
  void clear_at_start(std::function<bool(const std::string& path)> is_meant) {
    is_cleared_ = std::move(is_meant);
  }

  /// Another folder of the run, which init() is to make and lock as data_path.
  void hold(const LockPlace& place) { held_.push_back(place); }

  /// Stores `content` as data_path/name, and as save_meta_to/name with each saver that has one.
  void save_config(const std::string& name, const std::string& content);

  /// Stores `json` under `key` beside the state of every later checkpoint and model file.
  void add_save_metadata(const std::string& key, const std::string& json);
  /// What goes into a checkpoint: without the keys that hold the state itself (version, steps,
  /// ...).
  SaveMetadata checkpoint_metadata() const;
  /// What goes into a model file: `version` too, as a string (the reference pickles an object
  /// there, which torch.load(weights_only=True) refuses).
  SaveMetadata model_metadata() const;

  /// True if /tracker/load names a checkpoint, and it is not kept for auto-resumed runs only.
  bool can_recall() const;
  /// The files to try. An auto-resumed run has data_path/checkpoint.pth, the snapshots and, if this
  /// run saved it, the file of /tracker/load, in the order of tracker/run_folder/resume_order.h. A file of
  /// /tracker/load that the run only began from comes last; one that another run has saved is left
  /// out if it is for auto-resume only, else it was asked for by name and comes first. Other runs
  /// have the file of /tracker/load alone. Only files that exist; empty if an auto-resumed run died
  /// before its first save: start from the beginning. What another run's saver wrote in this run's
  /// folder is left out.
  /// @throws ConfigError if not can_recall(), or if other runs have replaced all that there was
  std::vector<std::string> recall_candidates() const;

  /// What this run saved itself, this start or an earlier one that it resumes: the candidates in
  /// data_path, those first that were not saved amid skipped updates. Empty before the first save.
  /// Safe while a save is under way, but then tells of the files before it or after it: wait for the
  /// save to tell of it for sure.
  std::vector<std::string> own_checkpoints() const;

  /// @throws ConfigError if another run has taken a folder over, as far as is known: this one must
  /// write no more. Costs nothing; save() looks for itself
  void check_lock() const;

  /// Writes data_path/checkpoint.pth, model.pth and, of a run with adapters, lora.safetensors,
  /// keeps the first as a snapshot, then lets each saver copy the one it wants. A snapshot or saver
  /// that fails is logged and the others still save. Does nothing if neither best nor latest. One
  /// call at a time, but on any thread: the logging of others continues meanwhile.
  /// @throws what the writers throw: without these files there is nothing to resume from; and as
  /// check_lock()
  void save(const SaveRequest& request);

  /// What the run in data_path, which this one continues, was when it finished; empty if it did not.
  std::string finished_as() const;
  /// After the last save: the run has done all it was asked for. Does nothing if this start left a
  /// file or a picture out: the next one makes it again. @throws as check_lock(), ResourceError
  void finish_as(const std::string& what);

  /// After the last save: waits for what the savers still send, for as long as the config allows, or
  /// 10 s after a stop signal. What is left waits in data_path/outbox. finish() does it too, and
  /// waits 10 s after a fault.
  void finish_uploads();

 private:
  std::vector<std::string> own_files() const;
  std::vector<std::string> recorded_checkpoints() const;
  std::vector<ResumeFile> with_facts(const std::vector<std::string>& paths) const;
  std::vector<ResumeFile> take_others(std::vector<ResumeFile>& files) const;
  std::vector<std::string> numbered_checkpoints() const;
  std::optional<SavedFacts> facts_of(const std::string& path) const;
  std::string saved_by(const std::string& path) const;
  std::optional<bool> was_saved_by_this_run(const std::string& path) const;
  std::optional<bool> was_saved_by_this_run(const std::string& path, const std::string& by) const;
  void check_data_path() const;
  void read_records();
  void prepare_data_path(const std::function<void()>& while_lock_waits);
  bool is_of_this_run(const std::string& checkpoint) const;
  void explain_start(const std::string& reason) const;
  void explain_left_out() const;
  void clear_recorded();
  void remove_cleared();
  void give_back_names();
  std::vector<std::string> paths_of_a_run() const;
  void start_over(const std::string& began_from);
  void remove_mark();
  void name_run(const std::string& checkpoint);
  void name_run_in_log();
  void part_from_original();
  void check_places() const;
  void open_logs();
  void begin_logs();
  void take_back();
  LogMoment moment() const;
  void log_error_locked(const std::string& message);
  void fetch_source();
  std::string begun_from(const std::string& checkpoint) const;
  void start_uploads();
  void log_upload_errors();
  void tell_failed_copies() const;
  void send_cards();
  void finish_uploads(double seconds);
  void check_undecided() const;
  void check_started() const;
  void claim(const std::string& path, bool checkpoint, bool must_write = false);
  std::string how_to_go_on(const std::string& checkpoint);
  void save_as(Saver& saver, const FileToSave& file, const std::string& target);
  void keep_last_good();
  void keep_snapshot(const SaveRequest& request);
  void save_with(Saver& saver, const std::string& target_template, const SaveRequest& request);

  TrackerConfig config_;
  bool dummy_;
  ReadFacts read_facts_;
  FormatFields example_;
  bool auto_resumed_ = false;
  bool goes_on_ = false;                     // with the run that is in data_path
  bool is_copy_ = false;                     // of a run's folder: goes_on_, but as a run of its own
  std::optional<std::string> told_of_mark_;  // the text of auto_resume.json that was told of
  bool told_how_to_go_on_ = false;
  std::string marked_id_;  // of auto_resume.json
  /// What this start has renamed before its loggers began: paths of now and of before.
  std::vector<std::pair<std::string, std::string>> renamed_;
  std::string run_id_;        // decided by go_on() or begin_anew()
  bool is_new_name_ = false;  // run_id_ was made by this start
  std::vector<LockPlace> held_;
  std::vector<std::unique_ptr<RunLock>> locks_;  // of held_, after init()
  std::optional<OwnFiles> own_files_;
  /// Of own_files_: a save in the background claims files too.
  std::unique_ptr<std::mutex> files_mutex_ = std::make_unique<std::mutex>();
  std::function<bool(const std::string& path)> is_cleared_;  // null: nothing is
  std::unique_ptr<std::atomic<bool>> saved_ = std::make_unique<std::atomic<bool>>(false);
  std::unique_ptr<std::atomic<bool>> left_something_out_ =
      std::make_unique<std::atomic<bool>>(false);  // a file or picture that could not be written
  int64_t last_step_ = 0;
  bool finished_ = false;
  std::unique_ptr<Loggers> loggers_;
  RunFacts facts_;
  std::unique_ptr<CheckpointSource> source_;
  std::vector<std::unique_ptr<Saver>> savers_;
  std::optional<LogFile> log_file_;
  std::unique_ptr<std::mutex> log_mutex_ = std::make_unique<std::mutex>();  // loggers and log_file_
  Snapshots snapshots_;
  SaveMetadata metadata_;
  std::vector<StoredImage> last_pictures_;  // without their bytes
  int64_t saves_ = 0;                       // of this start
  std::optional<int64_t> cleared_;          // files that --clear-results has taken away
  struct FailedCopies {
    const Saver* saver;
    std::string target_template;
    int64_t count = 0;
    bool last_failed = false;
  };
  std::vector<FailedCopies> failed_copies_;  // of this start, in the order of their first failure
  bool sent_cards_ = false;
  std::unique_ptr<Uploads> uploads_;  // null: nothing is sent
};

}  // namespace dalle2
