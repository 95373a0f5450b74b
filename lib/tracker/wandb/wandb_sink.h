// SPDX-License-Identifier: MIT
// A run of Weights & Biases follows log.jsonl: its lines become rows, at the service or in a folder that
// `wandb sync` uploads.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "net/wandb_api.h"
#include "tracker/log/follower.h"
#include "tracker/wandb/console_lines.h"
#include "tracker/wandb/system_info.h"
#include "tracker/wandb/wandb_rows.h"

namespace dalle2 {

/// How a run begins.
struct WandbBegin {
  WandbRun run;
  bool goes_on = false;    ///< what it has are lines of this log
  int64_t first_line = 0;  ///< of a run that neither the service nor the cursors know
  std::string data_path;
  bool is_away = false;  ///< the start has asked in vain
  bool is_live = true;   ///< this process is the run: the machine is its machine
};

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
  int64_t connect_to_service(const LogCursors& cursors, int64_t written);
  int64_t open_folder(const LogCursors& cursors, int64_t written);
  void read_earlier(int64_t line);
  void add(const JournalLine& line);
  WandbItems items_of(const JournalLine& line);
  std::string pictures_of(const Json& list, int64_t line);
  void add_live();
  int64_t runtime_seconds() const;

  WandbApi api_;
  WandbBegin begin_;
  std::unique_ptr<WandbRows> rows_;  // null: not connected
  int64_t shift_ = 0;                // from the numbers of lines to the service's steps
  int64_t next_line_ = 0;            // after the last that rows_ got
  int64_t read_before_ = 0;          // lines of earlier starts, for columns_ and summary_
  std::set<std::string> columns_;
  WandbSummary summary_;
  double runtime_before_ = 0;       // of earlier starts, seconds
  std::vector<WandbUpload> files_;  // that have not arrived
  std::optional<ConsoleLines> console_;
  SystemStats stats_;
  std::optional<std::chrono::steady_clock::time_point> stats_at_;
  int64_t missing_pictures_ = 0;
};

}  // namespace dalle2
