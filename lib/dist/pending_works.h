// SPDX-License-Identifier: MIT
// The collectives of a rank that are under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dist/process_group_backend.h"

namespace dalle2 {

/// Threads may call it together. Only poll() asks the works, and never under a lock: the question may
/// wait for the driver of a GPU.
class PendingWorks {
 public:
  using Clock = std::chrono::steady_clock;

  /// Where the rank is.
  struct Place {
    bool waits = false;
    int64_t sequence = 0;  ///< of the collective that it waits in, or else of the last one begun
    std::string what = "start";
    double limit = 0;    ///< seconds that this collective may take if all ranks are in it
    double seconds = 0;  ///< since it began to wait or a collective ended, the later of both
  };
  /// A collective that ended with an error.
  struct Failed {
    int64_t number = 0;
    std::string what, reason;
    Clock::time_point since;
  };

  /// @param limit see Place @return its number
  int64_t begin(const std::string& what, std::chrono::seconds limit);
  void launched(int64_t number, std::shared_ptr<BackendWork> work);
  void end(int64_t number);
  /// The time since a collective ended starts over.
  void restart_clock();
  /// Lets the works go that are done, in their order, with the tensors that they hold. Returns at once
  /// while another thread is in it.
  void poll();
  Place place() const;
  /// The first that poll() found failed.
  std::optional<Failed> failed() const;

 private:
  struct Pending {
    int64_t number;
    std::string what;
    std::chrono::seconds limit;
    std::shared_ptr<BackendWork> work;
    Clock::time_point since;
  };

  std::mutex polling_;
  mutable std::mutex mutex_;  // all below
  std::deque<Pending> pending_;
  Place last_;  // begun
  std::optional<Failed> failed_;
  Clock::time_point last_end_ = Clock::now();
};

}  // namespace dalle2
