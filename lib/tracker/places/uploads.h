// SPDX-License-Identifier: MIT
// Sends what waits in an outbox, each saver with a thread of its own: a slow service holds up nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tracker/places/destination.h"
#include "tracker/places/outbox.h"

namespace dalle2 {

class Uploads {
 public:
  /// Takes up what an earlier process left there. @throws as Outbox
  explicit Uploads(const std::string& folder, Outbox::FreeBytes free_bytes = free_disk_bytes);
  /// As end().
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// What waits is sent by the first that takes it.
  void serve(std::shared_ptr<Destination> destination);
  /// Begins to send what waits, the oldest first. A failed file is tried again
  /// after a growing pause, or with the next one. Call it when all are served.
  void begin();
  /// Puts a file into the outbox; it may be replaced afterwards. @throws as Outbox::add()
  void add(const FileToSend& file);

  /// What has failed since it was last asked, for the log.
  std::vector<std::string> take_errors();
  /// What waits in the outbox.
  std::vector<OutboxEntry> waiting() const;
  /// What waits for services that nobody serves.
  std::vector<OutboxEntry> unserved() const;

  // ---- the end, in this order
  /// Each failed file is tried once more, at once.
  void begin_end();
  /// Whether each file was sent, or refused again.
  bool is_done() const;
  /// Whether the last upload that ended has failed.
  bool last_answer_was_fault() const;
  /// Ends transfers that are under way, and the threads. What is left waits in the outbox.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::shared_ptr<Destination> destination;
    std::thread thread;
    double pause_seconds = 0;    // after failures in a row
    Clock::time_point retry_at;  // of failed ones
    std::set<int64_t> failed;    // since the last pause or, in the end, at all
    bool done = false;           // in the end: nothing is left to try
  };

  Lane* lane_of(const FileToSend& file) const;
  void work(Lane& lane);
  std::optional<OutboxEntry> next(const Lane& lane) const;
  bool send(Destination& to, const OutboxEntry& entry, std::unique_lock<std::mutex>& lock);
  void abandon_dropped(std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;  // of what follows
  Outbox outbox_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::string> errors_;
  bool ending_ = false;
  bool last_failed_ = false;
  std::atomic<bool> cancelled_ = false;
};

/// Waits for what is still to be sent, files and rows: `most_seconds` at most while something moves; after a
/// stop signal, or while `is_stuck`, 10 s (Slurm kills 30 s after it asks for a stop).
void wait_until_sent(const std::function<bool()>& is_sent,
                     const std::function<bool()>& is_stuck,
                     double most_seconds);

}  // namespace dalle2
