// SPDX-License-Identifier: MIT
// Catches the lines a test causes.
#pragma once

#include <algorithm>
#include <vector>

#include "base/log.h"

namespace dalle2::test {

class CapturedLog {
 public:
  struct Line {
    LogLevel level;
    std::string tag, text;
  };

  CapturedLog() {
    set_log_sink([this](LogLevel level, const std::string& tag, const std::string& text) {
      lines_.push_back({level, tag, text});
    });
  }
  ~CapturedLog() { set_log_sink(nullptr); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  const std::vector<Line>& lines() const { return lines_; }
  /// How many lines hold `part`.
  long count(const std::string& part) const {
    return std::count_if(lines_.begin(), lines_.end(), [&](const Line& line) {
      return line.text.find(part) != std::string::npos;
    });
  }
  long count(LogLevel level) const {
    return std::count_if(
        lines_.begin(), lines_.end(), [&](const Line& line) { return line.level == level; });
  }
  /// All lines, for the message of a test.
  std::string text() const {
    std::string all;
    for (const Line& line : lines_) all += line.tag + ": " + line.text + "\n";
    return all;
  }
  void clear() { lines_.clear(); }

 private:
  std::vector<Line> lines_;
};

}  // namespace dalle2::test
