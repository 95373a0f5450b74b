// SPDX-License-Identifier: MIT
// Whose a folder is. run.json makes it the folder of a run: whoever writes its token owns the run. And one
// process at a time works in it: it holds flock(2) on run.lock, which ends with the process however that
// ends; the file itself stays, and says who held it last.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/files/folder_names.h"  // kRecordFile

namespace dalle2 {

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
  std::string began_from;  ///< the file of /tracker/load; empty: the run began from zero
  std::string wandb;       ///< entity/project/run_id, a line a logger; empty: none
  std::string finished;    ///< what the run was when it finished; empty: it has not
  bool has_saved = false;
  bool was_empty = true;  ///< nothing was in the folder when the run began
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

/// In data_path.
inline constexpr const char* kLockFile = "run.lock";

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
  /// Makes the folder if it is not there. A file system without flock() gives one warning: then the
  /// token in run.json alone tells the runs apart.
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

}  // namespace dalle2
