// SPDX-License-Identifier: MIT
// Where the rows of a Weights & Biases run go: a folder on a disk, or the service.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/formats/wandb_file.h"
#include "net/wandb_api.h"
#include "tracker/log/logger.h"

namespace dalle2 {

/// What is known of a run when it begins.
struct WandbRun {
  WandbRunInfo info;  ///< its config is made of the next
  WandbItems config;  ///< one item a section
  double start_unix_seconds = 0;
  bool resumed = false;
};

/// The column of the history that charts have as their axis: our own step, which may go back.
inline constexpr const char* kWandbAxis = "step";

/// A line that was printed, without its end.
struct WandbConsoleLine {
  std::string text;
  bool is_error = false;
  double unix_seconds = 0;
};

/// The run's file with what was printed.
inline constexpr const char* kWandbConsoleFile = "output.log";

/// The last value of every column, as JSON.
using WandbSummary = std::map<std::string, std::string>;

class WandbRows {
 public:
  virtual ~WandbRows() = default;
  /// @param step the service's own, which always rises
  virtual void history(const WandbItems& row, int64_t step) = 0;
  virtual void column(const std::string& name) = 0;
  virtual void file(const WandbUpload& file) = 0;
  virtual void stats(const WandbItems& figures, double unix_seconds) = 0;
  virtual void console(const std::vector<WandbConsoleLine>& lines) = 0;
  /// Returns when all of it has arrived. @throws NetworkError, ResourceError
  virtual void flush(const WandbSummary& summary) = 0;
  virtual void end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) = 0;
};

/// A run at the service. @param run known to the service already
/// @param state what it has of the run
/// @param columns that the config defines already
std::unique_ptr<WandbRows> make_wandb_stream(const WandbApi& api,
                                             WandbRun run,
                                             const WandbRunState& state,
                                             std::vector<std::string> columns);

/// The folder `offline-run-<time>-<id>` in `parent`, which `wandb sync` uploads.
/// @param[out] path of it. @throws ConfigError, ResourceError
std::unique_ptr<WandbRows> make_wandb_folder(const std::string& parent,
                                             const WandbRun& run,
                                             std::string* path);

/// The sections of a config, a JSON object.
WandbItems wandb_items(const std::string& config);

/// The config of a run as the service stores it: {"key": {"value": ...}, "_wandb": ...}.
std::string wandb_config(const WandbItems& config, const std::vector<std::string>& columns);

}  // namespace dalle2
