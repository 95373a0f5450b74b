// SPDX-License-Identifier: MIT
#pragma once

#include "run/commands.h"

namespace dalle2 {

/// Parses the arguments and runs the command they name.
/// @return the process's exit code; usage errors print what was wrong and give kConfig
int run_command_line(int argc, char** argv);

}  // namespace dalle2
