// SPDX-License-Identifier: MIT
// One process at a time writes into a folder: data_path/run.lock, results.lock in a VAE's folder of
// results, shards.lock beside shards.
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
  std::chrono::milliseconds folder{10'000};   ///< others lock the folder for moments only
  /// Called again and again while a lock of another machine is waited for, which its process may
  /// have left behind; it may throw. Null: such a lock is an error at once.
  std::function<void()> while_waiting = nullptr;
};

/// A lock file as it stands.
struct LockFile {
  std::string content;
  int64_t touched_ms = 0;  ///< by the clock of the file system
};

/// Of a run, in data_path.
inline constexpr const char* kLockFile = "run.lock";

/// A folder that a process has to itself, and what is said of it.
struct LockPlace {
  std::string folder;  ///< made if it is not there
  std::string file = kLockFile;
  std::string key = "/tracker/data_path";  ///< where the folder is named
  std::string clash = "Two runs would overwrite each other's files.";
  /// What this process does about a lock that another one has taken over.
  std::string when_lost =
      "This run ends without writing there: the files are those of the other run, which resumed "
      "from the last checkpoint. Let that one continue.";
};

/// Holds the lock of a folder as long as it lives. The file is made atomically on network file
/// systems too. A lock whose process is dead is taken over, with a line in the log: on this machine
/// that is known, also for one of an earlier boot; a lock of another machine is dead if its file
/// was not touched for LockTimes::stale by the clock of the file system. Whoever touches it while it
/// is waited for is alive. That other process may only have slept: once a lock was taken over from
/// one that could not be asked, its file stays when it is released, and says that. Whoever wakes
/// then finds that others were here.
class RunLock {
 public:
  /// @throws ConfigError another process holds the lock, or folder or file cannot be made;
  /// ResourceError the disk is full or fails; what LockTimes::while_waiting throws
  explicit RunLock(const LockPlace& place, const LockTimes& times = {});
  /// Of a run.
  explicit RunLock(const std::string& data_path, const LockTimes& times = {})
      : RunLock(LockPlace{data_path}, times) {}
  /// Removes the file if it is still this lock's (or says in it that it is free), and the folder if
  /// it made that and nothing is in it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Looks at the file. @throws ConfigError once another process has taken the lock over, for good
  void look();
  /// The same by what was seen last: it is looked at once in a while. Costs nothing.
  void check() const;

  /// Whether the folder was not there before this lock.
  bool made_folder() const { return made_folder_; }

 private:
  bool acquire();
  void look_at_folder();
  bool make();
  void refresh();
  void keep_fresh();
  void release();
  void remove_folder_if_made();

  LockPlace place_;
  std::string path_, content_;
  LockTimes times_;
  bool made_folder_ = false;
  bool stays_ = false;  // a process that could not be asked has held it, and may wake
  std::optional<LockFile> waited_for_;  // as it was when the wait began
  uint64_t folder_inode_ = 0;
  bool told_gone_ = false;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;  // of what follows, and of what refresh() does
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread keeper_;
};

}  // namespace dalle2
