// SPDX-License-Identifier: MIT
// What a run reports: named values, in log.jsonl with every digit, and the line that people read of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/untrusted_json.h"

namespace dalle2 {

using LogValue = std::variant<int64_t, double, std::string>;
/// Named values in the order they are shown, e.g. {{"Epoch", 3}, {"Unet 0 Training Loss", 0.12}}.
using LogRecord = std::vector<std::pair<std::string, LogValue>>;

/// A picture for people: a whole PNG file, and its caption (empty: none).
struct LogImage {
  std::string png;
  std::string caption;
  std::string name = {};  ///< of the file; empty: by step, section and place in the list
};

struct StoredImage {
  std::string path;  ///< relative to data_path
  std::string caption;
};

/// A part of the line: "loss 0.3065 0.4217", "108 samples/s".
struct ShownValue {
  std::string label = {};             ///< before the values
  std::vector<LogValue> values = {};  ///< several are one a part of the model
  std::string unit = {};              ///< after them
  int digits = 4;                     ///< significant ones, at most
};
/// None: the record is for log.jsonl alone.
using ShownRecord = std::vector<ShownValue>;

/// "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s"
std::string record_line(const ShownRecord& shown, int64_t step);

ShownRecord shown_in_full(const LogRecord& record);

/// {"Epoch": 3, "loss": 0.5, "step": 40, "time": 1700000000.125} on one line: seconds since 1970. NaN and
/// infinity, which JSON has not, are null.
std::string format_record(const LogRecord& record, int64_t step, double time);

inline constexpr const char* kResumedFrom = "resumed_from_line";

/// Whole lines of a file that may be absent. @param[out] torn whether a kill left the last one half-written
int64_t count_lines(const std::string& path, bool& torn);

/// Appends whole lines, and never takes one back. A line that a kill left half-written is ended when the file
/// is opened. Lines that the disk refuses wait in memory, the newest 1,000, and are written first.
class LogFile {
 public:
  /// Goes on with the file, if there is one. @throws ConfigError if it cannot be written
  explicit LogFile(std::string path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Lines so far, earlier starts', marks and waiting ones among them: a checkpoint records it.
  int64_t lines() const { return written_ + static_cast<int64_t>(waiting_.size()); }
  /// Those of them that are in the file. From any thread.
  int64_t written() const { return written_; }
  const std::string& path() const { return path_; }
  /// If there are more than `lines`, appends {"resumed_from_line": lines}: readers pass over those between.
  void pass_over(int64_t lines);
  void write(const LogRecord& record, int64_t step);
  /// {section: [{"path": ..., "caption": text or null}, ...], "step": n, "time": seconds}
  void write_images(const std::vector<StoredImage>& images,
                    const std::string& section,
                    int64_t step);
  /// What is written is on the disk afterwards. From any thread.
  void sync() const;

 private:
  void append_line(std::string line);
  bool put(std::string& line);

  std::string path_;
  int descriptor_ = -1;
  std::atomic<int64_t> written_ = 0;
  std::deque<std::string> waiting_;
  bool torn_ = false;  // what the first of them ends is in the file
  bool warned_ = false;
};

/// Whether an entry of a record is one that was logged: the others say when.
bool is_value(const std::string& name);

/// A line of log.jsonl as a follower reads it.
struct JournalLine {
  int64_t number = 0;  ///< from 0
  Json record;         ///< null: it is none
  /// None of a mark and of what is no record.
  std::optional<int64_t> step() const;
  double time() const;  ///< seconds since 1970; 0: not known
  /// The number in a mark that a resume has left.
  std::optional<int64_t> resumed_from() const;
};

/// Reads lines in order, also while others are appended.
class LogLines {
 public:
  explicit LogLines(std::string path) : path_(std::move(path)) {}
  /// The next line will be the one of that number.
  void go_to(int64_t line);
  int64_t next_line() const { return next_; }
  /// At most `most` lines, none of a number from `end` on. A file that cannot be read has none.
  std::vector<JournalLine> read(int64_t end, size_t most);
  /// Each of those before `end`.
  void each(int64_t end, const std::function<void(const JournalLine& line)>& take);

 private:
  void seek();

  std::string path_;
  std::ifstream file_;
  std::streamoff place_ = 0;  // of the next line
  int64_t next_ = 0;
};

/// Values of one name over steps that grow. A NaN stands for what was logged as null.
struct LogSeries {
  std::string name;
  std::vector<int64_t> steps;
  std::vector<double> values;
};

/// The pictures of a list in a record; what is none is passed over.
std::vector<StoredImage> logged_pictures(const Json& list);

/// The file of a logged picture; none if it cannot be read, or would not lie below data_path, by `..` or a
/// link: a log may come from elsewhere, and what is behind its paths is shown and sent.
std::optional<std::string> read_stored_picture(const std::string& data_path,
                                               const std::string& path);

struct LoggedPictures {
  std::string section;
  int64_t step = 0;
  std::vector<StoredImage> pictures;
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

const LogSeries* find_series(const RunLog& log, const std::string& name);

}  // namespace dalle2
