// SPDX-License-Identifier: MIT
// log.jsonl read back, for people to look at: curves by name, pictures, errors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

/// Values of one name over steps that grow. A NaN stands for what was logged as null.
struct LogSeries {
  std::string name;
  std::vector<int64_t> steps;
  std::vector<double> values;
};

/// A stored picture: where it lies below data_path, and its caption (empty: none).
struct LoggedPicture {
  std::string path, caption;
};

/// The pictures of a section at a step.
struct LoggedPictures {
  std::string section;
  int64_t step = 0;
  std::vector<LoggedPicture> pictures;
};

struct RunLog {
  std::vector<LogSeries> series;         ///< in the order in which the names first came
  std::vector<LoggedPictures> pictures;  ///< in the order of the file
  std::vector<std::pair<int64_t, std::string>> errors;  ///< step and message
  int64_t records = 0;
  int64_t unreadable_lines = 0;  ///< the last one of a run that was killed, or damage
};

/// Reads what can be read. Steps that were done twice (a run that was killed and went on from its
/// last save) keep what was logged last. @throws DataError if the file cannot be read at all
RunLog read_run_log(const std::string& path);

/// The series of that name; null if there is none.
const LogSeries* find_series(const RunLog& log, const std::string& name);

}  // namespace dalle2
