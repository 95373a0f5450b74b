// SPDX-License-Identifier: MIT
// What shows the records of a run: what the config asks for, and whether it may log. log.jsonl is not a
// logger: it is always kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/shared/tracker_config.h"

namespace dalle2 {

/// What a logger may know of the run.
struct RunFacts {
  std::string config = "{}";  ///< a JSON object, every default filled in, without secrets
  /// What the config does not say, names and JSON texts: ranks, precision.
  std::vector<std::pair<std::string, std::string>> process = {};
  bool goes_on = false;        ///< with the run in data_path; set by the tracker, as are the next
  bool is_copy = false;        ///< data_path is a copy of another run's
  int64_t lines = 0;           ///< of its log.jsonl before this start
  std::string data_path = {};  ///< where log.jsonl and the pictures are
};

/// How a run ended.
struct RunEnd {
  enum class Outcome { kDone, kStopped, kFailed };
  Outcome outcome = Outcome::kFailed;
  int exit_code = 1;
};

class JournalSink;

/// A logger as the config has it: the console, which the journal writes to, or what follows log.jsonl.
class Logger {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// @param type its name in auto_resume.json, the reference's class name: "ConsoleLogger"
  /// @param prints_records the console shows them
  Logger(std::string type, bool auto_resume, bool prints_records)
      : type_(std::move(type)), auto_resume_(auto_resume), prints_records_(prints_records) {}
  virtual ~Logger() = default;

  /// Finds out whether it may log at all; writes nothing. @throws ConfigError, NetworkError: a refusal
  virtual void check(Deadline /*deadline*/) {}
  /// What gets the lines of log.jsonl; null: nothing does. Nothing is asked or written yet.
  virtual std::unique_ptr<JournalSink> make_sink(const RunFacts& facts) = 0;
  /// What a later start needs to continue with this log, by the names in auto_resume.json. Texts that are
  /// empty are not stored.
  virtual std::vector<std::pair<std::string, std::string*>> attributes() { return {}; }
  /// "entity/project/run_id" of a logger to Weights & Biases whose run has an id; else empty.
  virtual std::string wandb_run() const { return ""; }

  const std::string& type_name() const { return type_; }
  /// /tracker/log/auto_resume of this logger. Of a run: Loggers::auto_resume().
  bool auto_resume() const { return auto_resume_; }
  bool prints_records() const { return prints_records_; }

 private:
  std::string type_;
  bool auto_resume_, prints_records_;
};

class Loggers {
 public:
  /// Of /tracker/log. @throws ConfigError
  Loggers(const std::vector<LogConfig>& configs, const std::string& data_path);

  /// A run resumes by itself if any of its loggers asks for it; then all continue.
  bool auto_resume() const;
  bool prints_records() const;
  bool has_console() const;
  /// "ConsoleLogger", or "ConsoleLogger, WandbLogger".
  std::string type_names() const;
  /// Logger::wandb_run() of those that have one, a line each.
  std::string wandb_runs() const;
  /// Of the first of them.
  std::string wandb_run() const { return wandb_runs().substr(0, wandb_runs().find('\n')); }
  const std::vector<std::unique_ptr<Logger>>& all() const { return loggers_; }

  /// @throws ConfigError, NetworkError: a refusal
  void check(Logger::Deadline deadline) const;

  /// Reads auto_resume.json, if it is there: the attributes in it take the place of the loggers' own, so
  /// that a resumed run logs where the run before it did, as in the reference. A logger that the file does
  /// not know starts over. It decides nothing else.
  /// @throws ConfigError the file is of a logger that the run has not, or unreadable
  void read_auto_resume(const std::string& path) const;
  /// Writes it: of one logger as the reference does, of several a list.
  void write_auto_resume(const std::string& path) const;

 private:
  std::vector<std::unique_ptr<Logger>> loggers_;
};

}  // namespace dalle2
