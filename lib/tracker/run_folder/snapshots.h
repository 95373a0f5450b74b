// SPDX-License-Identifier: MIT
// Older checkpoints of a run, for a resume to fall back on and to go back to.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// Where a run stood when it saved, in the order of time.
struct SnapshotPosition {
  int64_t samples_seen = 0;  ///< of the whole run
  int64_t step = 0;          ///< updates of the first trained unet
  int64_t epoch = 0;
  auto operator<=>(const SnapshotPosition&) const = default;
};

/// "epoch0003_sample0000009872_step00001234.pth".
std::string snapshot_name(const SnapshotPosition& position);
/// The position of a name that snapshot_name() gives; none of any other name.
std::optional<SnapshotPosition> snapshot_position(const std::string& name);

/// What a file that a run saved says of itself.
struct SavedFacts {
  std::string run_id = {};  ///< empty: saved by another program
  int64_t samples_seen = 0;
  int64_t steps = 0;  ///< SnapshotPosition::step
  /// Updates were being skipped when it was saved: its weights may be at fault.
  bool amid_skips = false;
  std::optional<int64_t> log_lines = {};  ///< of log.jsonl when it was saved
};

/// Reads them without the tensors. None if the file cannot be read.
using ReadFacts = std::function<std::optional<SavedFacts>(const std::string& path)>;

/// The file of the averages at a step, in kAveragesFolder: "step00001234.pth".
std::string averages_name(int64_t step);

struct SnapshotRules {
  int64_t keep_last = 1;                   ///< besides the newest
  std::optional<int64_t> keep_every = {};  ///< samples seen; the first snapshot at or after each
                                           ///< multiple stays for good
  bool enabled() const { return keep_last > 0 || keep_every.has_value(); }
};

/// Of the positions, which may be in any order, those whose files go. The newest stays always, and
/// so does `current`, which may stand before others in a run that went back.
std::vector<SnapshotPosition> snapshots_to_remove(std::vector<SnapshotPosition> all,
                                                  const SnapshotPosition& current,
                                                  const SnapshotRules& rules);

/// The folder of a run's snapshots.
class Snapshots {
 public:
  Snapshots(std::string folder, const SnapshotRules& rules);

  /// Takes `checkpoint_path`, which was verified when it was written, up as the snapshot of
  /// `position`, as best.pth too if it is the best so far, and then removes what the rules do not
  /// keep. Does nothing without rules.
  /// @throws ResourceError, DataError: the file at `checkpoint_path` is untouched
  void keep(const std::string& checkpoint_path, const SnapshotPosition& position, bool is_best);

  /// The files of positions after `position`. @throws DataError the folder cannot be read
  std::vector<std::string> after(const SnapshotPosition& position) const;
  std::string best_path() const;
  /// The snapshots there are, the newest first, then the best.
  std::vector<std::string> newest_first() const;

 private:
  std::vector<SnapshotPosition> positions() const;
  std::string path_of(const SnapshotPosition& position) const;

  std::string folder_;
  SnapshotRules rules_;
};

}  // namespace dalle2
