// SPDX-License-Identifier: MIT
#pragma once

namespace dalle2 {

/// From now on the log goes to stderr: stdout has nothing but the command's result.
void log_to_stderr();

}  // namespace dalle2
