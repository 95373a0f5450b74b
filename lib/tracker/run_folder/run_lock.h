// SPDX-License-Identifier: MIT
// One process at a time works in a run's folder: it holds flock(2) on run.lock, which ends with the
// process however that ends. The file itself stays, and says who held it last.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace dalle2 {

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
