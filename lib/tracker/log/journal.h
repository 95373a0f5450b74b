// SPDX-License-Identifier: MIT
// What a run says: lines of log.jsonl and pictures. The console shows them, followers hand them on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tracker/log/follower.h"
#include "tracker/log/log_file.h"
#include "tracker/log/record.h"

namespace dalle2 {

class Journal {
 public:
  /// @param may_write called before a line or a picture is written; throws if it must not be
  Journal(const std::vector<LogConfig>& configs,
          const std::string& data_path,
          std::function<void()> may_write);

  const Loggers& loggers() const { return loggers_; }

  /// Opens log.jsonl. @param lines that the file had when the checkpoint that the run
  /// resumes from was saved: those that came later are marked as passed over. None: it is not known
  /// @throws ConfigError it cannot be written
  void open(RunFacts facts, const std::string& run_id, std::optional<int64_t> lines);
  /// Begins to follow it. @param deadline of what is asked of services
  /// @throws ConfigError a logger's files cannot be written; NetworkError a refusal
  void follow(Logger::Deadline deadline);
  bool is_open() const { return file_.has_value(); }
  /// The lines so far, marks among them.
  int64_t lines() const;
  /// They are on the disk afterwards.
  void sync() const;
  /// The run has gone back to a checkpoint that was saved when the file had that many lines.
  void pass_over(int64_t lines);

  /// A line in log.jsonl, where NaN and infinity become null, and one on the console.
  /// @param shown what of it is for people; all of it if not given, no line if empty
  void log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown);
  /// Stores data_path/images/{step}_{section}_{i}.png, or under the names given, and a record
  /// {section: [{path, caption}]}. A picture that cannot be stored is an error in the log.
  void log_images(const std::vector<LogImage>& images, const std::string& section, int64_t step);
  /// @param leaves_out a file of this machine is missing
  void log_error(const std::string& message, bool leaves_out = true);
  /// A file of data_path that belongs to the run: its config.
  void log_file(const std::string& name);

  /// No more is logged: the followers hand over what is left.
  void begin_end(const RunEnd& end);
  /// Nothing is left to hand over.
  bool is_done() const;
  /// All that have something left met a fault last.
  bool last_was_fault() const;
  /// What followers have not handed over, for a message: "Weights & Biases (12 rows)". Ends them.
  std::vector<std::string> end();

  /// Whether an error was logged that leaves a file or a picture out.
  bool has_errors() const { return has_errors_.load(); }
  /// Up to four of the pictures that were stored last, without their bytes.
  std::vector<StoredImage> last_pictures() const;

 private:
  void check_may_write() const;
  void log_error_locked(const std::string& message, bool leaves_out = true);
  void wrote();

  std::string data_path_;
  std::function<void()> may_write_;
  Loggers loggers_;
  std::optional<LogFile> file_;
  std::atomic<int64_t> written_ = 0;  // lines in it
  std::optional<LogCursors> cursors_;
  mutable std::mutex mutex_;
  int64_t last_step_ = 0;
  std::string unnamed_run_;  // its first line is still to be written
  std::atomic<bool> has_errors_ = false;
  std::vector<StoredImage> last_pictures_;
  std::vector<std::unique_ptr<Follower>> followers_;  // the last to come and the first to go
};

}  // namespace dalle2
