// SPDX-License-Identifier: MIT
// What lies in the folder of a run: the names, the record that says whose it is, the lock, the snapshots.
// Whoever writes the token of its run.json owns the run. One process at a time works in it: it holds flock(2)
// on run.lock, which ends with the process; the file stays, and says who held it last.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/files/folder_names.h"  // kRecordFile, kImagesFolder, kResultsFolder, kOutboxFolder

namespace dalle2 {

inline constexpr const char* kCheckpointFile = "checkpoint.pth";
inline constexpr const char* kModelFile = "model.pth";
inline constexpr const char* kLoraFile = "lora.safetensors";
inline constexpr const char* kLogFile = "log.jsonl";
inline constexpr const char* kSnapshotsFolder = "snapshots";
inline constexpr const char* kBestSnapshot = "snapshots/best.pth";
inline constexpr const char* kAveragesFolder = "averages";  ///< of /train/post_hoc_ema
/// What is newer than the checkpoint that the run went back to.
inline constexpr const char* kAbandonedFolder = "abandoned";
/// Of a state that is spread over ranks, while it is put together.
inline constexpr const char* kGatheredFile = "gathered";
/// What /tracker/load names, if that is not a file of this machine.
inline constexpr const char* kLoadedFile = "loaded_checkpoint.pth";
/// README.md of a repository on the hub, in the outbox while it is put there.
inline constexpr const char* kCardFile = "model_card.md";
/// How far each follower has got in log.jsonl; a hint.
inline constexpr const char* kFollowersFile = "followers.json";
inline constexpr const char* kLockFile = "run.lock";
/// Where the loggers log to, for a resume.
inline constexpr const char* kAutoResumeFile = "auto_resume.json";
/// Event files of TensorBoard, unless the config names another folder.
inline constexpr const char* kTensorboardFolder = "tensorboard";

/// What a run writes into its folder, besides its config, run.json and run.lock.
inline constexpr const char* kOwnNames[] = {kCheckpointFile,
                                            kModelFile,
                                            kLoraFile,
                                            kLogFile,
                                            kAutoResumeFile,
                                            kFollowersFile,
                                            kSnapshotsFolder,
                                            kAveragesFolder,
                                            kAbandonedFolder,
                                            kImagesFolder,
                                            kResultsFolder,
                                            kTensorboardFolder,
                                            kOutboxFolder};

/// A random UUID (RFC 9562, version 4): "0f8fad5b-d9cb-469f-a165-70867728950e".
/// @throws ResourceError if the system gives no random bytes
std::string make_run_id();

/// The content of run.json.
struct RunRecord {
  std::string id;
  std::string token;       ///< drawn at each start
  std::string began;       ///< UTC, for people
  std::string job;         ///< of Slurm or torchrun; empty: none
  std::string home;        ///< where the folder was at the last start, without links
  std::string started_in;  ///< working directory of the last start
  std::string began_from;  ///< the file of /tracker/load; empty: the run began from zero
  std::string wandb;       ///< entity/project/run_id, a line a logger; empty: none
  std::string finished;    ///< what the run was when it finished; empty: it has not
  bool has_saved = false;
  bool was_empty = true;   ///< nothing was in the folder when the run began
  int64_t first_line = 0;  ///< of log.jsonl that is its own: a copied folder has others before
  /// SHA-256 of the copies of its config that the run has written elsewhere, by absolute path.
  std::map<std::string, std::string> copies = {};
  /// What loggers say of the last start beside its config (RunFacts::process).
  std::map<std::string, std::string> process = {};

  bool operator==(const RunRecord&) const = default;
};

/// None if the folder holds no run.json. @throws DataError with the way out if it cannot be read
std::optional<RunRecord> read_run_record(const std::string& folder);
/// @throws as AtomicFile
void write_run_record(const std::string& folder, const RunRecord& record);

/// "2026-01-31T12:00:00Z"
std::string utc_now();
/// "slurm 4711" or "torchrun ID"; empty outside of both.
std::string this_job();
/// Whether Slurm or torchrun has restarted this job.
bool is_restarted_job();

/// How long a lock is waited for.
struct LockTimes {
  std::chrono::milliseconds here{10'000};  ///< the holder is on this machine, or a person waits
  std::chrono::milliseconds elsewhere{300'000};  ///< a lost machine's lock ends with its connection
  /// Called while it waits; may throw (a stop signal). Null: nothing.
  std::function<void()> while_waiting = nullptr;
};

/// Holds the lock of a folder as long as it lives.
class RunLock {
 public:
  /// Makes the folder if it is not there. A file system without flock() gives one warning.
  /// @throws ConfigError the folder or the file cannot be made, or the lock is held on this machine;
  /// NetworkError it is held elsewhere; what LockTimes::while_waiting throws
  explicit RunLock(const std::string& folder, const LockTimes& times = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  bool try_once();

  std::string folder_, path_;
  int descriptor_ = -1;
};

// Older checkpoints of a run, for a resume to fall back on and to go back to.

/// Where a run stood when it saved, in the order of time.
struct SnapshotPosition {
  int64_t samples_seen = 0;  ///< of the whole run
  int64_t step = 0;          ///< updates of the first trained unet
  int64_t epoch = 0;
  auto operator<=>(const SnapshotPosition&) const = default;
};

/// "epoch0003_sample0000009872_step00001234.pth".
std::string snapshot_name(const SnapshotPosition& position);
/// The position of a name that snapshot_name() gives; none of any other name.
std::optional<SnapshotPosition> snapshot_position(const std::string& name);

/// What a file that a run saved says of itself.
struct SavedFacts {
  std::string run_id = {};  ///< empty: saved by another program
  int64_t samples_seen = 0;
  int64_t steps = 0;  ///< SnapshotPosition::step
  /// Updates were being skipped when it was saved: its weights may be at fault.
  bool amid_skips = false;
  std::optional<int64_t> log_lines = {};  ///< of log.jsonl when it was saved
};

/// Reads them without the tensors. None if the file cannot be read.
using ReadFacts = std::function<std::optional<SavedFacts>(const std::string& path)>;

/// The file of the averages at a step, in kAveragesFolder: "step00001234.pth".
std::string averages_name(int64_t step);

struct SnapshotRules {
  int64_t keep_last = 1;  ///< besides the newest
  /// Samples seen; the first snapshot at or after each multiple stays for good.
  std::optional<int64_t> keep_every = {};
  bool enabled() const { return keep_last > 0 || keep_every.has_value(); }
};

/// Of the positions, in any order, those whose files go. The newest stays, and so does `current`.
std::vector<SnapshotPosition> snapshots_to_remove(std::vector<SnapshotPosition> all,
                                                  const SnapshotPosition& current,
                                                  const SnapshotRules& rules);

/// The positions of the snapshots in a folder, the newest first. @throws DataError it cannot be read
std::vector<SnapshotPosition> kept_snapshots(const std::string& folder);

}  // namespace dalle2
