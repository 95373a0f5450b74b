// SPDX-License-Identifier: MIT
// Sends what runs could not send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

struct SyncReport {
  size_t sent = 0, left = 0;             ///< files
  int64_t rows_sent = 0, rows_left = 0;  ///< lines of log.jsonl
  std::vector<std::string> errors;       ///< why some are left
};

/// Sends what waits in data_path/outbox, each file once, and the lines of log.jsonl that the run's
/// Weights & Biases run has not got, with the logins of this environment.
/// @param data_path of a run @throws ConfigError it is none, or a copy of one
SyncReport sync_run(const std::string& data_path);

}  // namespace dalle2
