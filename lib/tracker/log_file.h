// SPDX-License-Identifier: MIT
// log.jsonl: one JSON object a record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tracker/record.h"

namespace dalle2 {

/// {"Epoch": 3, "loss": 0.5, "step": 40} on one line. NaN and infinity, which JSON has not, are null.
std::string format_record(const LogRecord& record, int64_t step);

/// Appends whole lines; what a killed run left half-written is dropped when the file is opened.
class LogFile {
 public:
  /// Goes on with the file, if there is one. @throws ConfigError if it cannot be written
  explicit LogFile(std::string path);
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;

  void write(const LogRecord& record, int64_t step);
  /// {section: [{"path": ..., "caption": text or null}, ...], "step": n}
  void write_images(const std::vector<StoredImage>& images,
                    const std::string& section,
                    int64_t step);

 private:
  void append_line(const std::string& line);

  std::string path_;
  int descriptor_ = -1;
  bool warned_ = false;
};

}  // namespace dalle2
