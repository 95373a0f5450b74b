// SPDX-License-Identifier: MIT
// `inspect`, `fsck` and `schema`: what is in files, and what may be. `sync`: where they go.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/fsck.h"
#include "checkpoint/inspect.h"
#include "config/kinds.h"
#include "run/commands.h"
#include "run/loop/run_position.h"
#include "tracker/places/remote_file.h"
#include "tracker/places/sync.h"
#include "tracker/run_folder/own_files.h"

namespace dalle2 {

void run_inspect(const InspectCommand& command) {
  log_to_stderr();
  const FetchedFile file(command.path);
  Inspection inspection = inspect_file(file.path());
  if (file.path() != command.path) inspection.path = public_url(command.path);
  const std::string text = command.json ? inspection_json(inspection) : inspection_text(inspection);
  std::printf("%s\n", text.c_str());
}

namespace {

/// Which files of a run's folder another run has saved: the run does not resume from them.
void tell_other_runs(const std::string& folder, const std::vector<CheckedFile>& files) {
  if (!std::filesystem::is_directory(folder)) return;
  const OwnFiles own(folder);
  for (const CheckedFile& file : files) {
    const std::optional<SavedFacts> facts = read_saved_facts(file.path);
    if (!facts || !own.is_of_another_run(file.path, facts->run_id)) continue;
    // What the run began from is its last resort.
    if (own.began_from(file.path) || file.path == (std::filesystem::path(folder) / kLoadedFile)) {
      continue;
    }
    std::printf(
        "%s: saved by run %s, not by the run of this folder (%s), which does not resume from it\n",
        printable(file.path).c_str(),
        facts->run_id.c_str(),
        own.run_id().c_str());
  }
}

}  // namespace

ExitCode run_fsck(const FsckCommand& command) {
  const std::vector<CheckedFile> files = check_path(command.path);
  const std::string text =
      command.json ? fsck_json(command.path, files) + "\n" : fsck_text(command.path, files);
  std::printf("%s", text.c_str());
  if (!command.json) tell_other_runs(command.path, files);
  return all_intact(files) ? ExitCode::kDone : ExitCode::kData;
}

void run_schema(const std::string& kind) {
  std::printf("%s\n", config_schema(kind).c_str());
}

ExitCode run_sync(const SyncCommand& command) {
  const SyncReport report = sync_outbox(command.data_path);
  for (const std::string& error : report.errors) log_error("track", "{}", error);
  std::printf("%s sent, %s\n",
              counted(static_cast<int64_t>(report.sent), "file").c_str(),
              report.left == 0 ? "nothing is left" : fmt::format("{} left", report.left).c_str());
  return report.left == 0 && report.errors.empty() ? ExitCode::kDone : ExitCode::kNetwork;
}

}  // namespace dalle2
