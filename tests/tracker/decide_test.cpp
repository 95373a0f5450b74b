// SPDX-License-Identifier: MIT
// The rule of docs/resuming.md, for all facts there are.
#include "tracker/run_folder/run_folder.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>
#include <utility>

#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

using enum StartAction;

/// The rows of the table, written from the text of the rule: the first that applies counts.
const std::vector<std::pair<std::function<bool(const StartFacts&)>, StartAction>>& rows() {
  static const auto is_run = [](const StartFacts& f) { return f.folder == FolderState::kSaved; };
  static const auto is_fresh = [](const StartFacts& f) { return f.fresh && !f.restarted_job; };
  static const std::vector<std::pair<std::function<bool(const StartFacts&)>, StartAction>> all = {
      {[](auto& f) { return f.folder == FolderState::kUnreadable; }, kRefuseUnreadable},
      {[](auto& f) {
         return f.back_to && is_run(f) && !f.fresh && f.restarted_job && !f.has_intact;
       },
       kRefuseDamaged},
      {[](auto& f) { return f.back_to && is_run(f) && !f.fresh && f.restarted_job; }, kResume},
      {[](auto& f) { return f.back_to && is_run(f) && !f.fresh && f.has_intact; }, kGoBack},
      {[](auto& f) { return f.back_to; }, kRefuseBack},
      {[](auto& f) { return f.folder == FolderState::kEmpty; }, kBegin},
      {[](auto& f) {
         return f.folder == FolderState::kCheckpoint && f.auto_resume && !is_fresh(f);
       },
       kAdopt},
      {[](auto& f) {
         return f.folder == FolderState::kCheckpoint || f.folder == FolderState::kFiles;
       },
       kRefuseFiles},
      {[](auto& f) { return f.folder == FolderState::kUnsaved; }, kBeginInPlace},
      {[](auto& f) { return (is_fresh(f) || (!f.auto_resume && f.overwrite)) && f.load_is_inside; },
       kRefuseLoadInside},
      {[](auto& f) { return is_fresh(f); }, kSetAside},
      {[](auto& f) { return !f.auto_resume && f.overwrite; }, kSetAside},
      {[](auto& f) { return !f.auto_resume; }, kRefuseExists},
      {[](auto& f) { return f.load_is_other; }, kRefuseLoad},
      {[](auto& f) { return !f.has_intact; }, kRefuseDamaged},
      {[](auto&) { return true; }, kResume},
  };
  return all;
}

StartAction expected(const StartFacts& facts) {
  for (const auto& [applies, action] : rows()) {
    if (applies(facts)) return action;
  }
  return kBegin;
}

TEST_CASE("every combination of facts leads to the action of the first row that applies") {
  std::map<StartAction, int> seen;
  int combinations = 0;
  for (const FolderState folder : {FolderState::kEmpty,
                                   FolderState::kFiles,
                                   FolderState::kCheckpoint,
                                   FolderState::kUnreadable,
                                   FolderState::kUnsaved,
                                   FolderState::kSaved}) {
    for (unsigned bits = 0; bits < 256; ++bits) {
      const StartFacts facts{.folder = folder,
                             .auto_resume = (bits & 1) != 0,
                             .overwrite = (bits & 2) != 0,
                             .fresh = (bits & 4) != 0,
                             .restarted_job = (bits & 8) != 0,
                             .back_to = (bits & 16) != 0,
                             .load_is_other = (bits & 128) != 0,
                             .load_is_inside = (bits & 32) != 0,
                             .has_intact = (bits & 64) != 0};
      CAPTURE(static_cast<int>(folder), bits);
      const StartAction action = decide(facts);
      CHECK(action == expected(facts));
      ++seen[action];
      ++combinations;
    }
  }
  CHECK(combinations == 6 * 256);
  CHECK(seen.size() == start_rules().size());  // each action is reached
}

TEST_CASE("the table in the docs is the rules, each once") {
  std::set<StartAction> actions;
  std::string table = "| `data_path` | `auto_resume` | what a start does |\n|---|---|---|\n";
  for (const StartRule& rule : start_rules()) {
    actions.insert(rule.action);
    table += fmt::format("| {} | {} | {} |\n", rule.folder, rule.auto_resume, rule.does);
  }
  CHECK(actions.size() == start_rules().size());
  const std::string page = read_file(DALLE2_SOURCE_DIR "/docs/resuming.md");
  INFO("docs/resuming.md should have:\n" << table);
  CHECK(page.find(table) != std::string::npos);
}

}  // namespace
}  // namespace dalle2
