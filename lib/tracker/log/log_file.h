// SPDX-License-Identifier: MIT
// log.jsonl: one JSON object a record; written by a run, and read back for people to look at.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/untrusted_json.h"
#include "tracker/log/record.h"

namespace dalle2 {

/// {"Epoch": 3, "loss": 0.5, "step": 40} on one line. NaN and infinity, which JSON has not, are null.
std::string format_record(const LogRecord& record, int64_t step);

/// Appends whole lines, and never takes one back. A line that a kill left half-written is ended when
/// the file is opened: it is no record.
class LogFile {
 public:
  /// Goes on with the file, if there is one. @throws ConfigError if it cannot be written
  explicit LogFile(std::string path);
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;

  /// Lines in the file, earlier starts' and marks among them: the number of the next one.
  int64_t records() const { return records_; }
  /// Those of them that the disk has taken: a checkpoint records it.
  int64_t lines() const { return lines_; }
  /// If there are more than `lines`, appends {"resumed_from_line": lines}: whoever reads the file
  /// passes over the lines between.
  void pass_over(int64_t lines);
  void write(const LogRecord& record, int64_t step);
  /// {section: [{"path": ..., "caption": text or null}, ...], "step": n}
  void write_images(const std::vector<StoredImage>& images,
                    const std::string& section,
                    int64_t step);

 private:
  void append_line(const std::string& line);

  std::string path_;
  int descriptor_ = -1;
  int64_t records_ = 0, lines_ = 0;
  bool warned_ = false;
};

/// Gives each record from number `first` on to `take`; a line that is no record is passed over. The
/// number of the first line is 0. A file that cannot be read has none.
void for_each_record(const std::string& path,
                     int64_t first,
                     const std::function<void(int64_t number, const Json& record)>& take);

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

/// The pictures of a list in a record; what is none is passed over.
std::vector<LoggedPicture> logged_pictures(const Json& list);

/// The file of a logged picture, which may be absent; none if it would not lie below data_path, by `..`
/// or by a link on the way, or is a link itself: a log may come from elsewhere, and what is behind its
/// paths is shown and sent.
std::optional<std::string> stored_picture(const std::string& data_path, const std::string& path);

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

/// Reads what can be read, without the lines that a resume passed over.
/// @throws DataError if the file cannot be read at all
RunLog read_run_log(const std::string& path);

/// The series of that name; null if there is none.
const LogSeries* find_series(const RunLog& log, const std::string& name);

}  // namespace dalle2
