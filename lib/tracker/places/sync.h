// SPDX-License-Identifier: MIT
// Sends what runs could not send.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dalle2 {

struct SyncReport {
  size_t sent = 0, left = 0;        ///< files
  std::vector<std::string> errors;  ///< why some are left
};

/// Sends what waits in data_path/outbox, and in those of earlier runs that were set aside there
/// (outbox.1), the oldest run first. Each file is tried once, with the logins of this environment.
/// @throws ConfigError there is no such folder, or a run is at work in it
SyncReport sync_outboxes(const std::string& data_path);

}  // namespace dalle2
