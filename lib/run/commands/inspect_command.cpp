// SPDX-License-Identifier: MIT
#include <cstdio>

#include "checkpoint/inspect.h"
#include "run/commands.h"

namespace dalle2 {

void run_inspect(const InspectCommand& command) {
  const Inspection inspection = inspect_file(command.path);
  const std::string text = command.json ? inspection_json(inspection) : inspection_text(inspection);
  std::printf("%s\n", text.c_str());
}

}  // namespace dalle2
