// SPDX-License-Identifier: MIT
// Sends what waits in an outbox, each service with a thread of its own: a slow one holds up nobody.
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

/// A service, and what a later process has to know to reach it again.
struct Recipient {
  std::shared_ptr<Destination> destination;
  /// The saver's config as JSON for a target, without secrets.
  std::function<std::string(const std::string& target)> saver_json;
};

class Uploads {
 public:
  /// Takes up what an earlier process left there. @throws as Outbox
  explicit Uploads(const std::string& folder, Outbox::FreeBytes free_bytes = free_disk_bytes);
  /// Ends transfers that are under way; what is left waits in the outbox.
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// Takes on a service; one that is served already continues so.
  /// @param templates as Destination::know_template() takes them
  void serve(Recipient recipient, const std::vector<std::string>& templates = {});
  /// Begins to send what waits for the services, the newest first. A failed file is tried again after a
  /// growing pause, or with the next one. Call it when all are served: they share what they know.
  void begin();
  /// Puts a file into the outbox; it may be replaced afterwards. @throws as Outbox::add()
  void add(const std::string& to, const FileToSend& file);

  /// What has failed since it was last asked, for the log.
  std::vector<std::string> take_errors();
  /// Waits until all was sent or refused again, and then ends the threads. Says how much waits
  /// and for how long, and what is left afterwards.
  /// @param seconds at most; a stop signal, before or meanwhile, leaves at most kSecondsAfterStop
  /// @return how many files are left
  size_t finish(double seconds);
  /// What waits in the outbox.
  std::vector<OutboxEntry> waiting() const { return outbox_.waiting(); }
  /// What waits for services that nobody serves.
  std::vector<OutboxEntry> unserved() const;

  static constexpr double kSecondsAfterStop = 10;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    Recipient recipient;
    std::thread thread;
    double pause_seconds = 0;    // after failures in a row
    Clock::time_point retry_at;  // of failed ones
    std::set<int64_t> failed;    // since the last pause or, in the end, at all
    std::set<std::string> sent_targets;
    bool done = false;  // in the end: nothing is left to try
  };

  Lane* lane_of(const std::string& to) const;
  void work(Lane& lane);
  std::optional<OutboxEntry> next(const Lane& lane) const;
  bool send(Lane& lane, const OutboxEntry& entry);
  void report(const std::string& error);
  void end_threads();

  Outbox outbox_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::string> errors_;
  bool ending_ = false;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace dalle2
