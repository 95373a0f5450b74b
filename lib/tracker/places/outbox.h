// SPDX-License-Identifier: MIT
// Files that wait on the disk for being sent, so that neither a later save nor a kill changes them.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/files/writable.h"

namespace dalle2 {

/// A file that waits.
struct OutboxEntry {
  int64_t number = 0;  ///< rises with time
  std::string path;    ///< of the file, in the outbox
  std::string to;      ///< Destination::name()
  std::string target;  ///< Destination::full_target() tells the rest
  std::string kind;
  std::string saver;  ///< the saver's config as JSON, without secrets
  bool only_if_absent = false;
  uint64_t bytes = 0;
};

/// The folder data_path/outbox: a file with its original bytes (a hard link where that can be), and
/// one that says where it goes. An entry is there as a whole or not at all, whenever the process is
/// killed. Safe from several threads.
class Outbox {
 public:
  /// Bytes that the disk of a folder has left; none: not known.
  using FreeBytes = std::function<std::optional<uint64_t>(const std::string& folder)>;

  /// Reads what waits; removes what is incomplete.
  /// @throws DataError, ResourceError
  explicit Outbox(std::string folder, FreeBytes free_bytes = free_disk_bytes);

  /// Whether anything waits in a folder; nothing is changed.
  static bool has_entries(const std::string& folder);

  /// Takes a file up. An older one for the same place goes, unless it is being sent. If the disk
  /// would be full soon, the oldest others go too.
  /// @param entry without number, path and bytes
  /// @return what was removed for want of space
  /// @throws DataError, ResourceError: then nothing has changed
  std::vector<OutboxEntry> add(OutboxEntry entry, const std::string& file);
  /// What waits, the oldest first.
  std::vector<OutboxEntry> waiting() const;
  /// It is being sent: add() leaves it. One at a time for a place.
  void begin(const OutboxEntry& entry);
  /// It is not being sent any more.
  /// @param sent it goes; so does what a newer entry has replaced
  void end(const OutboxEntry& entry, bool sent);

 private:
  struct Held {
    OutboxEntry entry;
    bool busy = false;
    bool replaced = false;
  };

  void read_folder();
  void remove(const OutboxEntry& entry) const;
  std::vector<OutboxEntry> make_room(uint64_t bytes);
  std::string note_path(int64_t number) const;

  std::string folder_;
  FreeBytes free_bytes_;
  mutable std::mutex mutex_;
  std::vector<Held> held_;  // the oldest first
  int64_t next_number_ = 1;
};

}  // namespace dalle2
