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
#include "tracker/places/remote_file.h"
#include "tracker/places/sync.h"

namespace dalle2 {

void run_inspect(const InspectCommand& command) {
  log_to_stderr();
  const FetchedFile file(command.path);
  Inspection inspection = inspect_file(file.path());
  if (file.path() != command.path) inspection.path = public_url(command.path);
  const std::string text = command.json ? inspection_json(inspection) : inspection_text(inspection);
  std::printf("%s\n", text.c_str());
}

ExitCode run_fsck(const FsckCommand& command) {
  const std::vector<CheckedFile> files = check_path(command.path);
  const std::string text =
      command.json ? fsck_json(command.path, files) + "\n" : fsck_text(command.path, files);
  std::printf("%s", text.c_str());
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
