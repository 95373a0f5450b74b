// SPDX-License-Identifier: MIT
// Starts the ranks of a run on this machine, and is their parent: dalle2-train --nproc-per-node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace dalle2 {

/// What became of a rank. `signal` is 0 if it ended by itself.
struct RankEnd {
  int rank = 0;
  int code = 0, signal = 0;
};

/// The exit code of a run whose ranks ended so, in the order in which they ended: that of the first
/// that failed by itself, else 6 if one was killed or lost its peers, else 75 if any stopped, else
/// 0.
ExitCode exit_code_of(const std::vector<RankEnd>& ends);

/// Starts the processes and waits for all of them. Stop signals are passed on to each. A signal
/// that ends a single rank before all have met ends the others too, with 75. The output of rank 0
/// appears unchanged; lines of the others begin with "[rank N] ". When one fails, the others have a
/// few seconds to report what they see before they are ended. One that is stopped
/// (SIGSTOP) for a minute is ended too.
/// @param command program and arguments of each @throws ResourceError if a process cannot be started
ExitCode launch_ranks(int64_t processes, const std::vector<std::string>& command);

}  // namespace dalle2
