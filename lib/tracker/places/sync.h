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

/// Sends what waits in data_path/outbox. Each file is tried once, with the logins of this environment.
/// @param data_path of a run @throws ConfigError it is none, or a copy of one
SyncReport sync_outbox(const std::string& data_path);

}  // namespace dalle2
