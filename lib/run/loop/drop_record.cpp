// SPDX-License-Identifier: MIT
#include "run/loop/drop_record.h"

#include "base/log.h"

namespace dalle2 {

void report_drops(Tracker& tracker,
                  int64_t steps,
                  const std::string& split,
                  const DropCounts& dropped) {
  if (dropped.empty()) return;
  log_warning("data", "{}: left out in this epoch: {}", split, describe_drops(dropped));
  LogRecord record;
  for (const auto& [reason, count] : dropped)
    record.emplace_back(fmt::format("Dropped {}: {}", split, reason), count);
  tracker.log(record, steps, ShownRecord{});
}

}  // namespace dalle2
