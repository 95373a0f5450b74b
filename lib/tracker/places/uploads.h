// SPDX-License-Identifier: MIT
// Files for services: who takes them (Destination), and where they wait so that neither a later save nor a
// kill changes them, until they are sent (Uploads).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "config/shared/tracker_config.h"
#include "io/files/writable.h"
#include "net/http_call.h"

namespace dalle2 {

/// A file for a service. It holds no secret: it is stored while it waits.
struct FileToSend {
  std::string path;
  std::string to = {};          ///< Destination::name()
  std::string target;           ///< its name there
  std::string kind;             ///< for people: "checkpoint"
  bool only_if_absent = false;  ///< a file of that name stays as it is
};

class Destination {
 public:
  virtual ~Destination() = default;

  /// An address without secrets. Places that differ have names that differ.
  virtual std::string name() const = 0;
  /// Where a target is, for people.
  virtual std::string place_of(const std::string& target) const { return name() + "/" + target; }
  /// Asks the service whether it would take files. Sends none.
  /// @throws NetworkError (one that may_pass() if the service is away), ConfigError
  virtual void check_access(const HttpOptions& options) = 0;
  /// Sends a file that it takes, whole or not at all; it is not changed meanwhile.
  /// @param notes of this file
  /// @throws NetworkError, DataError
  virtual void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) = 0;
  /// Whether the notes hold no secret, so that they may be on the disk.
  virtual bool stores_notes() const { return false; }
};

/// The service of a saver's config; null for files of this machine. A W&B run without wandb_run_path can
/// be asked, and nothing can be sent yet. @throws ConfigError
std::unique_ptr<Destination> make_destination(const SaveConfig& config);

/// A file that waits: `path` is in the outbox.
struct OutboxEntry : FileToSend {
  int64_t number = 0;  ///< rises with time
  uint64_t bytes = 0;
  std::string notes = {};              ///< UploadNotes; empty: nothing of it is at the service
  bool busy = false, refused = false;  // in this process

  bool is_for_same_target(const OutboxEntry& other) const {
    return to == other.to && target == other.target;
  }
  /// It is being sent, or a part of it is at the service: a newer one does not replace it.
  bool is_begun() const { return busy || (!notes.empty() && !refused); }
};

/// The folder data_path/outbox, and who sends what waits there: each saver with a thread of its own. The folder
/// has for each file its bytes (a hard link where that can be), a note that says where it goes, and what its
/// upload has written down: as a whole or not at all, whenever the process is killed.
class Uploads {
 public:
  /// For the log, on any thread; it may not ask this object.
  using OnError = std::function<void(const std::string& error)>;
  /// Bytes that the disk of a folder has left; none: not known.
  using FreeBytes = std::function<std::optional<uint64_t>(const std::string& folder)>;

  /// Removes what is incomplete, and begins to send what an earlier process left there, the oldest first. A
  /// failed file is tried again after a growing pause, or with the next one. @throws DataError, ResourceError
  Uploads(std::string folder,
          const std::vector<std::shared_ptr<Destination>>& destinations,
          OnError on_error,
          FreeBytes free_bytes = free_disk_bytes);
  ~Uploads() { end(); }

  /// Puts a file into the outbox; it may be replaced afterwards. Older ones for the same target go, unless
  /// they are begun. If the disk would be full soon, the oldest others go too: each is an error.
  /// @throws DataError, ResourceError: then nothing has changed
  void add(const FileToSend& file);

  /// What waits in the outbox.
  std::vector<OutboxEntry> waiting() const;
  /// What waits for services that nobody serves.
  std::vector<OutboxEntry> unserved() const;

  // ---- the end, in this order
  /// Each failed file is tried once more, at once.
  void begin_end();
  /// Whether each file was sent, or refused again.
  bool is_done() const;
  /// Whether the last attempt at each destination that is not done has failed.
  bool last_answer_was_fault() const;
  /// Ends transfers that are under way, and the threads. What is left waits in the outbox.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::shared_ptr<Destination> destination;
    std::thread thread;
    double pause_seconds = 0;      // after failures in a row
    Clock::time_point retry_at;    // of failed ones
    Clock::time_point busy_until;  // as the service said (Retry-After); of the thread alone
    std::set<int64_t> failed;      // since the last pause or, in the end, at all
    std::atomic<bool> last_failed = false;  // an attempt, and nothing has arrived since
    bool done = false;                      // in the end: nothing is left to try
  };

  void read_folder();
  std::string path_of(int64_t number, const char* ending) const;
  OutboxEntry* find(int64_t number);
  void remove(size_t index);
  void remove_replaced();
  void make_room(uint64_t bytes);
  void keep_notes(int64_t number, const std::string& text, bool on_disk);

  Lane* lane_of(const FileToSend& file) const;
  void work(Lane& lane);
  OutboxEntry* next(const Lane& lane);
  bool send(Lane& lane, const OutboxEntry& entry, std::unique_lock<std::mutex>& lock);

  const std::string folder_;
  const OnError on_error_;
  const FreeBytes free_bytes_;
  mutable std::mutex mutex_;          // of what follows
  std::vector<OutboxEntry> entries_;  // the oldest first
  int64_t next_number_ = 1;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool ending_ = false;
  std::atomic<bool> cancelled_ = false;
};

/// Waits for what is to be sent: `most_seconds` at most; 10 s after a stop (Slurm kills 30 s after it), or stuck.
void wait_until_sent(const std::function<bool()>& is_sent,
                     const std::function<bool()>& is_stuck,
                     double most_seconds);

}  // namespace dalle2
