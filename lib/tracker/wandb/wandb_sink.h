// SPDX-License-Identifier: MIT
// A run of Weights & Biases follows log.jsonl: its lines become rows, at the service or in a folder that
// `wandb sync` uploads.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tracker/log/follower.h"
#include "tracker/wandb/system_info.h"
#include "tracker/wandb/wandb_run.h"

namespace dalle2 {

/// Hears what the log prints from now on, and keeps it until it is taken. Whoever prints never waits:
/// lines beyond `most_bytes` are lost.
class ConsoleLines {
 public:
  explicit ConsoleLines(size_t most_bytes = size_t{4} << 20);
  ~ConsoleLines();
  ConsoleLines(const ConsoleLines&) = delete;
  ConsoleLines& operator=(const ConsoleLines&) = delete;

  /// The lines since the last call.
  std::vector<WandbConsoleLine> take();

 private:
  int listener_ = 0;
  std::mutex mutex_;  // of what follows
  std::vector<WandbConsoleLine> lines_;
  size_t bytes_ = 0;
};

/// How a run begins.
struct WandbBegin {
  WandbRun run;
  bool goes_on = false;     ///< what it has are lines of this log
  int64_t first_line = 0;   ///< of a run that neither the service nor the cursors know
  bool must_exist = false;  ///< the user has named it as one to continue
  std::string data_path;
  bool is_away = false;  ///< the start has asked in vain
  bool is_live = true;   ///< this process is the run: the machine is its machine
};

/// For people.
std::string no_run_to_continue(const WandbRunPath& run);

class WandbSink : public JournalSink {
 public:
  WandbSink(WandbAccess access, WandbBegin begin);

  std::string name() const override { return "Weights & Biases"; }
  std::string key() const override;
  int64_t shift() const override { return shift_; }
  /// Asks the service how far the run is, or makes a folder.
  /// @throws ConfigError there can be no folder; NetworkError
  int64_t connect(const LogCursors& cursors, int64_t written) override;
  void send(const std::vector<JournalLine>& lines) override;
  void add_file(const std::string& name) override;
  void end(const RunEnd& end) override;
  void set_deadline(std::optional<Logger::Deadline> deadline) override {
    api_.options().deadline = deadline;
  }
  bool is_away() const override { return begin_.is_away; }
  double pause() const override;
  double idle_pause() const override;

 private:
  bool is_online() const { return api_.access().mode == WandbMode::kOnline; }
  int64_t connect_to_service(const LogCursors& cursors, int64_t written);
  int64_t open_folder(const LogCursors& cursors, int64_t written);
  void read_earlier(int64_t line);
  void know_column(const std::string& name);
  void add(const JournalLine& line, WandbBatch& batch);
  std::string pictures_of(const Json& list, int64_t line, WandbBatch& batch);
  void add_live(WandbBatch& batch);
  void hand_over(WandbBatch& batch);

  WandbApi api_;
  WandbBegin begin_;
  std::unique_ptr<WandbTarget> target_;  // null: not connected
  int64_t shift_ = 0;                    // from the numbers of lines to the service's steps
  int64_t next_line_ = 0;                // after the last that target_ got
  int64_t read_before_ = 0;              // lines of earlier starts, for columns_ and summary_
  std::set<std::string> columns_;
  std::vector<std::string> new_columns_;        // that target_ has not got
  std::map<std::string, std::string> summary_;  // JSON texts
  double runtime_before_ = 0;                   // of earlier starts, seconds
  std::vector<WandbUpload> files_;              // that have not arrived
  std::optional<ConsoleLines> console_;
  SystemStats stats_;
  std::optional<std::chrono::steady_clock::time_point> stats_at_;
  int64_t missing_pictures_ = 0;
};

}  // namespace dalle2
