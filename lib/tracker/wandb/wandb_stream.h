// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tracker/wandb/wandb_sink.h"

namespace dalle2 {

/// What was given to a WandbStream and has not arrived.
struct WandbPending {
  std::vector<WandbRow> rows;
  std::vector<WandbStats> stats;
  std::vector<WandbUpload> files;
  std::vector<WandbConsoleLine> console;
};

/// A run at the service, to which records go a few seconds after they come, many at once.
class WandbStream : public WandbSink {
 public:
  /// @param run known to the service already
  /// @param state of a run that continues; else as it begins
  WandbStream(const WandbApi& api, WandbRun run, const WandbRunState& state);

  void history(const WandbRow& row) override { pending_.rows.push_back(row); }
  void metric(const std::string& name) override;
  void file(const WandbUpload& file) override;
  void stats(const WandbStats& stats) override { pending_.stats.push_back(stats); }
  void console(const std::vector<WandbConsoleLine>& lines) override;
  void flush(const WandbSummary& summary) override;
  void end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) override;

  const WandbPending& pending() const { return pending_; }

 private:
  bool is_full() const;
  void send(const WandbItems& summary);
  void send_files(const std::vector<WandbUpload>& files);
  void send_lines(const WandbItems& summary, const Json& last);
  Json next_lines(const WandbItems& summary, size_t rows) const;
  std::string config() const;

  const WandbApi& api_;
  WandbRun run_;
  int64_t history_lines_, event_lines_, console_lines_;  // that the service has
  std::string console_;                                  // what was printed: a file at the end
  std::vector<std::string> metrics_;
  bool config_changed_ = false;
  WandbPending pending_;
  size_t file_bytes_ = 0;                          // of pending_, in memory
  std::vector<std::string> uploaded_;              // files that the service has and was not told of
  std::chrono::steady_clock::time_point sent_at_;  // the first is sent at once
};

/// The config of a run as the service stores it: {"key": {"value": ...}, "_wandb": ...}.
std::string wandb_config(const WandbItems& config, const std::vector<std::string>& metrics);

}  // namespace dalle2
