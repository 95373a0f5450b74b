// SPDX-License-Identifier: MIT
// What a start does with the folder of a run: the rule as one function. docs/resuming.md has it as a
// table, which is made from start_rules().
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// What lies in data_path.
enum class FolderState {
  kEmpty,       ///< absent, or without run.json and without a file that a run would write
  kFiles,       ///< no run.json, but files or folders that a run would write
  kCheckpoint,  ///< the same, with a checkpoint.pth that can be loaded
  kUnreadable,  ///< a run.json that cannot be read
  kUnsaved,     ///< a run that has saved nothing yet
  kSaved,       ///< a run that has saved
};

/// What /tracker/load names, seen from the run in data_path.
enum class LoadNames {
  kNothing,  ///< or a file for auto-resumed runs only
  kOwn,      ///< a file of the run, or what it began from
  kOther,
};

struct StartFacts {
  FolderState folder = FolderState::kEmpty;
  bool auto_resume = false;
  bool overwrite = false;  ///< /tracker/overwrite_data_path
  bool fresh = false;      ///< --fresh
  /// The job of this run, started again: its --fresh or --back-to is done.
  bool restarted_job = false;
  bool back_to = false;  ///< --back-to
  LoadNames load = LoadNames::kNothing;
  bool load_is_inside = false;  ///< the file of /tracker/load lies in data_path
  bool has_intact = true;       ///< a file of the run that it could resume from
};

enum class StartAction {
  kBegin,         ///< in an empty folder
  kBeginInPlace,  ///< under the id of the run, which has saved nothing
  kAdopt,         ///< resume checkpoint.pth, which makes the folder a run
  kSetAside,      ///< rename the whole folder, and begin
  kResume,
  kGoBack,  ///< to the file of --back-to, and resume
  // What ends the start:
  kRefuseFiles,
  kRefuseExists,
  kRefuseLoad,
  kRefuseLoadInside,
  kRefuseBack,
  kRefuseDamaged,
  kRefuseUnreadable,
};

StartAction decide(const StartFacts& facts);

/// A row of the table: what leads to an action, and what it does, for people.
struct StartRule {
  StartAction action;
  const char* folder;
  const char* auto_resume;
  const char* does;
};
/// In the order in which they apply.
const std::vector<StartRule>& start_rules();
const StartRule& rule_of(StartAction action);

}  // namespace dalle2
