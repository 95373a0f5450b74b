// SPDX-License-Identifier: MIT
// Which file a run resumes from. The one place that decides it; docs/resuming.md has the table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// What a file that a run saved says of itself.
struct SavedFacts {
  std::string run_id = {};  ///< empty: saved by an older version, or by another program
  int64_t samples_seen = 0;
  /// The samples seen at which the run stood again after each of its roll-backs.
  std::vector<int64_t> went_back_to = {};
  /// Updates were being skipped when it was saved: its weights may be at fault.
  bool amid_skips = false;
};

/// Reads them without the tensors. None if the file cannot be read, or says nothing of a run.
using ReadFacts = std::function<std::optional<SavedFacts>(const std::string& path)>;

/// A file that may be resumed from.
struct ResumeFile {
  std::string path;
  std::optional<SavedFacts> facts = {};
};

/// What the files are wanted for.
enum class ResumeFor {
  kStart,    ///< the newest state: a stop amid skipped updates resumes from just there
  kRollBack  ///< the newest state that was not saved amid skipped updates, then the others
};

/// The paths in the order in which they are tried: the file that has seen the most samples comes
/// first, and files that say the same keep their order. A file of a branch that a roll-back
/// abandoned is left out, as far as a later file tells. Files without facts come first: they cannot
/// be loaded, and the log names them as skipped.
std::vector<std::string> resume_order(const std::vector<ResumeFile>& files, ResumeFor purpose);

}  // namespace dalle2
