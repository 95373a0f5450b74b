// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_folder.h"

#include <algorithm>

#include "base/error.h"

namespace dalle2 {

StartAction decide(const StartFacts& facts) {
  using enum StartAction;
  const bool fresh = facts.fresh && !facts.restarted_job;
  if (facts.folder == FolderState::kUnreadable) return kRefuseUnreadable;
  if (facts.back_to) {
    if (facts.folder != FolderState::kSaved || facts.fresh) return kRefuseBack;
    if (facts.restarted_job) return facts.has_intact ? kResume : kRefuseDamaged;
    return facts.has_intact ? kGoBack : kRefuseBack;
  }
  if (facts.folder == FolderState::kEmpty) return kBegin;
  if (facts.folder == FolderState::kFiles) return kRefuseFiles;
  if (facts.folder == FolderState::kCheckpoint)
    return facts.auto_resume && !fresh ? kAdopt : kRefuseFiles;
  if (facts.folder == FolderState::kUnsaved) return kBeginInPlace;
  if (fresh || (!facts.auto_resume && facts.overwrite))
    return facts.load_is_inside ? kRefuseLoadInside : kSetAside;
  if (!facts.auto_resume) return kRefuseExists;
  if (facts.load_is_other) return kRefuseLoad;
  return facts.has_intact ? kResume : kRefuseDamaged;
}

const std::vector<StartRule>& start_rules() {
  using enum StartAction;
  static const std::vector<StartRule> rules = {
      {kRefuseUnreadable, "a `run.json` that cannot be read", "any", "exit 3, with the way out"},
      {kGoBack,
       "a run that has saved; `--back-to FILE` names a snapshot of it",
       "any",
       "makes that snapshot `checkpoint.pth`, moves what is newer to `abandoned/`, resumes"},
      {kRefuseBack, "any other, with `--back-to FILE`", "any", "exit 2"},
      {kBegin,
       "absent, empty or without `run.json`",
       "any",
       "begins: from `tracker.load` with all its state unless `only_auto_resume`, else from zero"},
      {kAdopt,
       "without `run.json`, with a `checkpoint.pth` that can be loaded",
       "on",
       "makes it a run under the checkpoint's id, and resumes"},
      {kRefuseFiles,
       "without `run.json`, with files that the run would write",
       "any other",
       "exit 2, which names them"},
      {kBeginInPlace,
       "a run that has saved nothing yet",
       "any",
       "begins again in place, under its id, with any config"},
      {kRefuseLoadInside,
       "a run, to be set aside, that holds the file of `tracker.load`",
       "off, or `--fresh`",
       "exit 2"},
      {kSetAside,
       "a run",
       "off, `overwrite_data_path` true; or `--fresh`",
       "renames the whole folder to the first free `data_path.N`, and begins"},
      {kRefuseExists, "a run", "off, `overwrite_data_path` false", "exit 2"},
      {kRefuseLoad,
       "a run; `tracker.load`, without `only_auto_resume`, names neither a file of it nor what it "
       "began from",
       "on",
       "exit 2"},
      {kResume,
       "a run that fits the config",
       "on",
       "resumes from `checkpoint.pth`; else from the newest intact snapshot; else from the file of "
       "`tracker.load` if this run saved it"},
      {kRefuseDamaged,
       "a run whose files are all damaged or gone",
       "on",
       "exit 3, which names the intact files among the savers' targets"},
  };
  return rules;
}

const StartRule& rule_of(StartAction action) {
  const auto found = std::ranges::find_if(
      start_rules(), [&](const StartRule& rule) { return rule.action == action; });
  D2_CHECK(found != start_rules().end(), "an action without a rule");
  return *found;
}

}  // namespace dalle2
