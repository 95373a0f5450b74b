// SPDX-License-Identifier: MIT
// `inspect`, `fsck` and `schema`: what is in files, and what may be.
#include <cstdio>

#include "checkpoint/fsck.h"
#include "checkpoint/inspect.h"
#include "config/kinds.h"
#include "run/commands.h"

namespace dalle2 {

void run_inspect(const InspectCommand& command) {
  const Inspection inspection = inspect_file(command.path);
  const std::string text = command.json ? inspection_json(inspection) : inspection_text(inspection);
  std::printf("%s\n", text.c_str());
}

ExitCode run_fsck(const FsckCommand& command) {
  const std::vector<CheckedFile> files = check_path(command.path);
  const std::string text =
      command.json ? fsck_json(command.path, files) + "\n" : fsck_text(command.path, files);
  std::printf("%s", text.c_str());
  return all_whole(files) ? ExitCode::kDone : ExitCode::kData;
}

void run_schema(const std::string& kind) {
  std::printf("%s\n", config_schema(kind).c_str());
}

}  // namespace dalle2
