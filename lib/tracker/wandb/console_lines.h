// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tracker/wandb/wandb_rows.h"

namespace dalle2 {

/// Hears what the log prints from now on, and keeps it until it is taken. Whoever prints never waits:
/// lines beyond `most_bytes` are lost.
class ConsoleLines {
 public:
  explicit ConsoleLines(size_t most_bytes = size_t{4} << 20);
  ~ConsoleLines();
  ConsoleLines(const ConsoleLines&) = delete;
  ConsoleLines& operator=(const ConsoleLines&) = delete;

  /// The lines since the last call.
  std::vector<WandbConsoleLine> take();

 private:
  const size_t most_bytes_;
  int listener_ = 0;
  std::mutex mutex_;  // of what follows
  std::vector<WandbConsoleLine> lines_;
  size_t bytes_ = 0;
};

}  // namespace dalle2
