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
/// The position of a name of that form; none of any other name.
std::optional<SnapshotPosition> snapshot_position(const std::string& name);

struct SnapshotRules {
  int64_t keep_last = 0;                   ///< besides the newest
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

  /// Keeps `checkpoint_path` as last_good.pth, whatever the rules: what comes after it is saved amid
  /// skipped updates. @throws as keep()
  void keep_last_good(const std::string& checkpoint_path);
  /// A later checkpoint is good too.
  void remove_last_good();

  /// Removes what is of a branch that the run has left: snapshots of positions after `position`, and
  /// of the files without a position in their names those that `is_later`. @throws as keep()
  void remove_after(const SnapshotPosition& position,
                    const std::function<bool(const std::string& path)>& is_later);

  /// The snapshots there are, the newest first, then the last good one and the best.
  std::vector<std::string> newest_first() const;

 private:
  std::vector<SnapshotPosition> positions() const;
  std::string path_of(const SnapshotPosition& position) const;
  std::string best_path() const;
  std::string last_good_path() const;

  std::string folder_;
  SnapshotRules rules_;
};

}  // namespace dalle2
