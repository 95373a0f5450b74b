// SPDX-License-Identifier: MIT
// One process at a time writes into a folder: data_path/run.lock, and shards.lock beside shards.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace dalle2 {

/// Who holds a lock: enough to find out whether that process still runs.
struct LockOwner {
  std::string host;           ///< name of the machine, for people and for a lock of another boot
  std::string boot_id;        ///< of the kernel the process runs under
  std::string pid_namespace;  ///< where `pid` means something; empty: not told
  int64_t pid = 0;
  int64_t start_time = 0;  ///< of the process, in clock ticks since the boot: a pid is used again
  std::string since;       ///< when the lock was taken, UTC, for people
};

/// This process as an owner.
LockOwner this_process();
/// The content of a lock file.
std::string lock_text(const LockOwner& owner);

/// Times by which a lock whose process cannot be asked after (another machine's, another
/// container's, or a broken file) is judged.
struct LockTimes {
  std::chrono::milliseconds refresh{30'000};  ///< the owner touches the file this often
  std::chrono::milliseconds stale{300'000};   ///< not touched for so long: its process is dead
  /// Called again and again while a lock of another machine is waited for, which its process may
  /// have left behind; it may throw. Null: such a lock is an error at once.
  std::function<void()> while_waiting = nullptr;
};

/// A lock file as it stands.
struct LockFile {
  std::string content;
  int64_t touched_ms = 0;  ///< by the clock of the file system
};

/// A folder that a process has to itself, and what is said of it.
struct LockPlace {
  std::string folder;  ///< that exists
  std::string file = "run.lock";
  std::string key = "/tracker/data_path";  ///< where the folder is named
  std::string clash = "Two runs would overwrite each other's files.";
  /// What this process does about a lock that another one has taken over.
  std::string when_lost = "This one ends and writes nothing there.";
};

/// Holds the lock of a folder as long as it lives. The file is made atomically on network file
/// systems too. A lock whose process is dead is taken over, with a line in the log: on this machine
/// that is known, also for one of an earlier boot; a lock of another machine is dead if its file
/// was not touched for LockTimes::stale by the clock of the file system. Whoever touches it while it
/// is waited for is alive.
class RunLock {
 public:
  /// @throws ConfigError another process holds the lock, or the file cannot be made; what
  /// LockTimes::while_waiting throws
  explicit RunLock(const LockPlace& place, const LockTimes& times = {});
  /// Of a run. @param data_path a folder that exists
  explicit RunLock(const std::string& data_path, const LockTimes& times = {})
      : RunLock(LockPlace{data_path}, times) {}
  /// Removes the file if it is still this lock's.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Looks at the file. False once another run has taken the lock over, for good.
  bool is_held();
  /// Whether it was found to be taken over; it is looked at once in a while. Costs nothing.
  bool is_lost() const { return lost_; }

 private:
  bool acquire();
  bool make();
  void refresh();
  void keep_fresh();

  LockPlace place_;
  std::string path_, content_;
  LockTimes times_;
  std::optional<LockFile> waited_for_;  // as it was when the wait began
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;  // of what follows, and of what refresh() does
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread keeper_;
};

}  // namespace dalle2
