// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "data/loader/drop_log.h"
#include "tracker/tracker.h"

namespace dalle2 {

/// What an epoch of a split left out: a warning, and a record of counts by reason; nothing if
/// nothing was.
void report_drops(Tracker& tracker,
                  int64_t steps,
                  const std::string& split,
                  const DropCounts& dropped);

}  // namespace dalle2
