// SPDX-License-Identifier: MIT
#include "tracker/wandb/console_lines.h"

#include <sstream>
#include <utility>

#include "base/log.h"
#include "io/formats/event_file.h"

namespace dalle2 {

ConsoleLines::ConsoleLines(size_t most_bytes) : most_bytes_(most_bytes) {
  listener_ = add_log_listener([this](LogLevel level, const std::string& text) {
    const std::lock_guard lock(mutex_);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      bytes_ += line.size() + sizeof(WandbConsoleLine);
      if (bytes_ > most_bytes_) return;
      lines_.push_back({line, level != LogLevel::kInfo, wall_time_seconds()});
    }
  });
}

ConsoleLines::~ConsoleLines() {
  remove_log_listener(listener_);
}

std::vector<WandbConsoleLine> ConsoleLines::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(lines_, {});
}

}  // namespace dalle2
