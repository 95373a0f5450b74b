// SPDX-License-Identifier: MIT
// Files that wait on the disk for being sent, so that neither a later save nor a kill changes them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/files/writable.h"
#include "tracker/places/destination.h"

namespace dalle2 {

/// A file that waits: `path` is in the outbox.
struct OutboxEntry : FileToSend {
  int64_t number = 0;  ///< rises with time
  uint64_t bytes = 0;
  std::string notes = {};  ///< UploadNotes; empty: nothing of it is at the service
  // In this process:
  bool busy = false, replaced = false, refused = false;

  /// An older file for it need not be sent.
  bool is_for_same_target(const FileToSend& other) const {
    return to == other.to && target == other.target;
  }
  bool may_go() const { return replaced && !busy && (notes.empty() || refused); }
};

/// The folder data_path/outbox: for each file its original bytes (a hard link where that can be), a note
/// that says where it goes, and what its upload has written down. An entry is there as a whole or not at
/// all, whenever the process is killed.
class Outbox {
 public:
  /// Bytes that the disk of a folder has left; none: not known.
  using FreeBytes = std::function<std::optional<uint64_t>(const std::string& folder)>;

  /// Reads what waits; removes what is incomplete.
  /// @throws DataError, ResourceError
  explicit Outbox(std::string folder, FreeBytes free_bytes = free_disk_bytes);

  /// Takes a file up. Older ones for the same target go, unless they are being sent, or a part of them is
  /// at the service. If the disk would be full soon, the oldest others go too.
  /// @return what was removed for want of space
  /// @throws DataError, ResourceError: then nothing has changed
  std::vector<OutboxEntry> add(const FileToSend& file);
  /// What waits, the oldest first.
  const std::vector<OutboxEntry>& waiting() const { return entries_; }
  /// It is being sent: add() leaves it. One at a time for a target.
  void begin(const OutboxEntry& entry);
  enum class Outcome { kSent, kFailed, kRefused };
  /// It is not being sent any more. It goes if it was sent, and if a newer entry has replaced it, unless
  /// it failed with a part of it at the service. @return whether it still waits
  bool end(const OutboxEntry& entry, Outcome outcome);
  /// What the upload of a file has written down.
  std::string notes(int64_t number);
  /// @param on_disk the next process may know them
  void keep_notes(int64_t number, const std::string& text, bool on_disk);
  /// Entries that are gone though a part of them is at the service, each told once.
  std::vector<OutboxEntry> take_dropped();

 private:
  void read_folder();
  void remove(const OutboxEntry& entry, bool is_sent);
  void remove_replaced();
  std::vector<OutboxEntry> make_room(uint64_t bytes);
  std::string path_of(int64_t number, const char* ending) const;
  OutboxEntry* find(int64_t number);

  std::string folder_;
  FreeBytes free_bytes_;
  std::vector<OutboxEntry> entries_;  // the oldest first
  std::vector<OutboxEntry> dropped_;
  int64_t next_number_ = 1;
};

}  // namespace dalle2
