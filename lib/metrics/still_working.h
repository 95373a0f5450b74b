// SPDX-License-Identifier: MIT
#pragma once

#include "base/stop_signal.h"
#include "base/this_process.h"

namespace dalle2 {

/// To be called between two pieces, of seconds at most, of what may take minutes: a sign of life for
/// the ranks that wait. @throws StoppedError after a stop signal
inline void still_working() {
  sign_of_life();
  if (const int signal = stop_requested(); signal != 0)
    throw StoppedError("{}", signal_name(signal));
}

}  // namespace dalle2
