// SPDX-License-Identifier: MIT
// What shows the records of a run. log.jsonl is not a logger: it is always kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tracker/log/record.h"

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

  /// @param prints_records the console shows them
  Logger(bool auto_resume, bool prints_records)
      : auto_resume_(auto_resume), prints_records_(prints_records) {}
  virtual ~Logger() = default;

  /// Its name in auto_resume.json, the reference's class name: "ConsoleLogger".
  virtual std::string type_name() const = 0;
  /// Finds out whether it may log at all; writes nothing. @throws ConfigError, NetworkError: a refusal
  virtual void check(Deadline /*deadline*/) {}
  /// What gets the lines of log.jsonl; null: nothing does. Nothing is asked or written yet.
  virtual std::unique_ptr<JournalSink> make_sink(const RunFacts& facts) = 0;

  /// What a later run needs to continue with this log, beside the type's name: attributes by name.
  virtual std::map<std::string, std::string> resume_data() const { return {}; }
  /// Takes an attribute of auto_resume.json instead of the config's: a resumed run logs where the
  /// run before it did. @param value text as it is, anything else as JSON
  /// @return false if there is no such attribute. @throws ConfigError a value it cannot have
  virtual bool set_attribute(const std::string& /*name*/, const std::string& /*value*/) {
    return false;
  }

  /// /tracker/log/auto_resume of this logger. Of a run: Loggers::auto_resume().
  bool auto_resume() const { return auto_resume_; }
  bool prints_records() const { return prints_records_; }

 private:
  bool auto_resume_, prints_records_;
};

}  // namespace dalle2
