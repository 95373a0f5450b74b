// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tracker/wandb/wandb_sink.h"

namespace dalle2 {

/// The newest folder of a run in `parent` that `wandb sync` has not uploaded. The service drops rows
/// that come after later ones.
std::optional<std::string> folder_to_sync(const std::string& parent, const std::string& run_id);

/// The folder `offline-run-<time>-<id>`, which `wandb sync` uploads.
class WandbFolder : public WandbSink {
 public:
  /// @param parent the folder in which it is made; a fault leaves nothing there. @throws ConfigError,
  /// ResourceError
  WandbFolder(const std::string& parent, const WandbRun& run);

  void history(const WandbRow& row) override { file_->write_history(row.items, row.step); }
  void metric(const std::string& name) override;
  void file(const WandbUpload& file) override;
  void stats(const WandbStats& stats) override;
  void console(const std::vector<WandbConsoleLine>& lines) override;
  void flush(const WandbSummary& summary) override;
  void end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) override;

  const std::string& path() const { return path_; }
  /// Of a folder that did not get all that it had to: nothing can be written there afterwards.
  void remove();

 private:
  void begin(const WandbRun& run);

  std::string path_;
  std::optional<WandbFile> file_;
  std::chrono::steady_clock::time_point summary_at_ = std::chrono::steady_clock::now();
};

}  // namespace dalle2
