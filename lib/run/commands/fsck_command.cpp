// SPDX-License-Identifier: MIT
#include <cstdio>

#include "checkpoint/fsck.h"
#include "run/commands.h"

namespace dalle2 {

ExitCode run_fsck(const FsckCommand& command) {
  const std::vector<CheckedFile> files = check_path(command.path);
  const std::string text =
      command.json ? fsck_json(command.path, files) + "\n" : fsck_text(command.path, files);
  std::printf("%s", text.c_str());
  return all_whole(files) ? ExitCode::kDone : ExitCode::kData;
}

}  // namespace dalle2
