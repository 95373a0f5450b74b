// SPDX-License-Identifier: MIT
#include "tracker/wandb/console_lines.h"

#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "io/formats/event_file.h"

namespace dalle2 {

ConsoleLines::ConsoleLines(size_t most_bytes) : most_bytes_(most_bytes) {
  listener_ = add_log_listener([this](LogLevel level, const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) add(line, level != LogLevel::kInfo);
  });
}

ConsoleLines::~ConsoleLines() {
  remove_log_listener(listener_);
}

void ConsoleLines::add(const std::string& line, bool is_error) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = line.size() + sizeof(WandbConsoleLine);
  if (bytes_ + bytes > most_bytes_) {
    ++left_out_;
    return;
  }
  bytes_ += bytes;
  lines_.push_back({line, is_error, wall_time_seconds()});
}

std::vector<WandbConsoleLine> ConsoleLines::take() {
  const std::lock_guard lock(mutex_);
  if (left_out_ > 0) {
    lines_.push_back({"(" + counted(std::exchange(left_out_, 0), "line") + " left out here)",
                      /*is_error=*/false,
                      wall_time_seconds()});
  }
  bytes_ = 0;
  return std::exchange(lines_, {});
}

}  // namespace dalle2
