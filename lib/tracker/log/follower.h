// SPDX-License-Identifier: MIT
// Loggers show the records of a run. Followers read log.jsonl, which is always kept, and hand its lines to a
// service or to files of another format. The run waits for none: what is away gets its lines when it is back.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "config/shared/tracker_config.h"
#include "tracker/log/log_file.h"

namespace dalle2 {

using Deadline = std::chrono::steady_clock::time_point;

struct RunFacts {
  std::string config = "{}";  ///< a JSON object, every default filled in, without secrets
  /// What the config does not say, names and JSON texts: ranks, precision.
  std::vector<std::pair<std::string, std::string>> process = {};
  /// Files of data_path that belong to the run, names and contents: its config.
  std::vector<std::pair<std::string, std::string>> files = {};
  bool goes_on = false;        ///< with the run in data_path; set by the tracker, as are the next
  bool is_copy = false;        ///< data_path is a copy of another run's
  int64_t first_line = 0;      ///< of log.jsonl that is the run's own
  std::string data_path = {};  ///< where log.jsonl and the pictures are
};

struct RunEnd {
  enum class Outcome { kDone, kStopped, kFailed };
  Outcome outcome = Outcome::kFailed;
  int exit_code = 1;
};

/// How far a logger is.
struct LogCursor {
  int64_t line = 0;   ///< after the last that it has
  int64_t shift = 0;  ///< a logger's own: what it adds to the numbers of lines
};

/// The first line of a log names the run, and is none.
inline int64_t rows_between(int64_t line, int64_t end) {
  return std::max<int64_t>(end - std::max<int64_t>(line, 1), 0);
}

/// followers.json: a cursor by Logger::key(). It is a hint: without it, or with an older one, a logger finds
/// out by itself or gets lines again. Safe from several threads.
class LogCursors {
 public:
  explicit LogCursors(std::string path);

  /// The furthest of those whose keys end so.
  std::optional<LogCursor> furthest(const std::string& ending) const;
  /// That of a key; if it has none, the furthest of the same run elsewhere, such as in an offline folder.
  std::optional<LogCursor> nearest(const std::string& key) const;
  void set(const std::string& key, const LogCursor& cursor);
  /// Writes the file if anything has changed. A write that fails leaves the older one.
  void save();

 private:
  std::string path_;
  mutable std::mutex mutex_;
  std::map<std::string, LogCursor> cursors_;
  bool changed_ = false;
};

/// A logger of the config. All is called on one thread, the run's, then its follower's, but for cancel().
class Logger {
 public:
  /// @param type its name in auto_resume.json, the reference's class name: "ConsoleLogger"
  explicit Logger(std::string type) : type_(std::move(type)) {}
  virtual ~Logger() = default;
  const std::string& type() const { return type_; }

  /// Finds out whether it may log at all; writes nothing. @throws ConfigError, NetworkError: a refusal
  virtual void check(Deadline /*deadline*/) {}
  /// Asks and writes nothing yet. @return whether it follows log.jsonl
  virtual bool begin(const RunFacts& facts) = 0;
  /// What a later start needs to continue with this log, by the names in auto_resume.json.
  virtual std::vector<std::pair<std::string, std::string*>> attributes() { return {}; }
  /// "entity/project/run_id" of a logger to Weights & Biases whose run has an id; else empty.
  virtual std::string wandb_run() const { return ""; }

  // ---- one that follows
  /// For people: "Weights & Biases".
  virtual std::string name() const { return ""; }
  /// Its name among the cursors, known after connect().
  virtual std::string key() const { return ""; }
  virtual int64_t shift() const { return 0; }
  /// Before the first line, and after each fault: finds out how far the other side is, of the lines
  /// `written` to log.jsonl. @return the line to continue with. @throws Error
  virtual int64_t connect(const LogCursors& /*cursors*/, int64_t /*written*/) { return 0; }
  /// Hands over lines; none: does what is due by time. Returns when the other side has them. @throws Error
  virtual void send(const std::vector<JournalLine>& /*lines*/) {}
  /// The last call. @throws Error
  virtual void end(const RunEnd& /*end*/) {}
  /// Seconds between two sends.
  virtual double pause() const { return 0; }
  /// The questions of a start end by then.
  virtual void set_deadline(std::optional<Deadline> /*deadline*/) {}
  /// check() has found it away, and asked to wait that long: the first attempt is the thread's.
  virtual std::optional<double> away_seconds() const { return std::nullopt; }

  /// From any thread: a call that is under way ends by an error.
  void cancel() { cancelled_ = true; }
  bool is_cancelled() const { return cancelled_.load(); }

 private:
  const std::string type_;
  std::atomic<bool> cancelled_ = false;
};

class Loggers {
 public:
  explicit Loggers(const std::vector<LogConfig>& configs);

  /// A run resumes by itself if any of its loggers asks for it; then all continue.
  bool auto_resume() const { return auto_resume_; }
  /// The console shows them.
  bool prints_records() const { return prints_records_; }
  /// "ConsoleLogger", or "ConsoleLogger, WandbLogger".
  std::string type_names() const;
  /// Logger::wandb_run() of those that have one, a line each.
  std::string wandb_runs() const;
  /// The first of them: the run that a loader and a saver mean.
  std::string wandb_run() const { return wandb_runs().substr(0, wandb_runs().find('\n')); }
  const std::vector<std::shared_ptr<Logger>>& all() const { return loggers_; }

  void check(Deadline deadline) const;

  /// Reads auto_resume.json, if it is there: a resumed run logs where the run before it did, as in the
  /// reference. A logger that the file does not know starts over.
  /// @throws ConfigError the file is of a logger that the run has not, or unreadable
  void read_auto_resume(const std::string& path) const;
  /// Writes it: of one logger as the reference does, of several a list.
  void write_auto_resume(const std::string& path) const;

 private:
  std::vector<std::shared_ptr<Logger>> loggers_;
  bool auto_resume_ = false, prints_records_ = false;
};

/// Where a follower reads, and what it may do.
struct FollowedLog {
  const LogFile& file;
  std::function<void(const std::string&)> log_error;  ///< a line in the log
  std::function<void()> check = [] {};                ///< throws if another start has taken over
  /// What a fault means for the reader.
  std::string advice = "The run continues. Rows wait in log.jsonl, and it is asked again.";
};

/// How long a follower waits. Tests have a clock of their own.
struct FollowerTimes {
  using Clock = std::chrono::steady_clock;

  double first_pause = 1, longest_pause = 60;  ///< seconds between attempts
  std::function<Clock::time_point()> now = Clock::now;
  /// Until it is notified, that long at most.
  std::function<void(std::condition_variable&, std::unique_lock<std::mutex>&, Clock::duration)>
      wait = [](auto& wake, auto& lock, auto most) { wake.wait_for(lock, most); };
};

/// A thread that follows the log for a logger, as long as the run lives.
class Follower {
 public:
  Follower(std::shared_ptr<Logger> logger,
           FollowedLog log,
           LogCursors& cursors,
           const FollowerTimes& times = {});
  /// Ends without waiting for what has not been sent.
  ~Follower();

  /// The first attempt, on the caller's thread. A service that is away is a warning. @throws as connect()
  void connect_now(Deadline deadline);
  void start() {
    thread_ = std::thread([this] { work(); });
  }
  /// No more lines come: hands over what is left, and how the run ended. A fault stands until an answer.
  void begin_end(const RunEnd& end);
  /// After begin_end(): all is handed over, or it was never started.
  bool is_done() const { return done_.load() || !thread_.joinable(); }
  bool last_was_fault() const { return fault_.load(); }
  /// Rows that it has not handed over. None if another start has taken the run over.
  int64_t waiting() const {
    return logger_->is_cancelled() ? 0 : rows_between(line_, log_.file.written());
  }
  const Logger& logger() const { return *logger_; }

 private:
  using Clock = FollowerTimes::Clock;

  void work();
  void try_once(const std::optional<RunEnd>& end);
  Clock::time_point next_time() const;
  void connect();
  bool send_lines();
  void note_fault(const std::exception& error, bool at_end);
  void note_success();
  void save_cursor(bool now);

  const std::shared_ptr<Logger> logger_;
  const FollowedLog log_;
  LogCursors& cursors_;
  const FollowerTimes times_;

  // Of the thread.
  LogLines lines_;
  size_t most_lines_ = 1000;  // of a request
  bool connected_ = false;
  double pause_ = 0;  // after faults in a row, seconds
  Clock::time_point retry_at_, sent_at_, saved_at_;
  std::optional<Clock::time_point> told_at_;  // of an error in the log
  bool away_ = false;                         // and a warning has said so

  std::atomic<int64_t> line_ = 0;  // the next one for the logger
  std::atomic<bool> fault_ = false, done_ = false;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::optional<RunEnd> end_;
  std::thread thread_;
};

}  // namespace dalle2
