// SPDX-License-Identifier: MIT
// Where a Weights & Biases run goes: to the service, or into a folder on a disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/formats/wandb_file.h"
#include "net/wandb_api.h"
#include "tracker/log/loggers.h"

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

/// What a run gets at once, in the order in which it comes.
struct WandbBatch {
  std::vector<std::string> columns = {};  ///< new ones
  std::vector<WandbUpload> files = {};
  std::vector<std::pair<int64_t, WandbItems>> rows = {};  ///< at the service's steps, which rise
  WandbItems stats = {};                                  ///< of the machine, or none
  double stats_unix_seconds = 0;
  std::vector<WandbConsoleLine> console = {};
  std::map<std::string, std::string> summary = {};  ///< the last value of every column
  std::optional<RunEnd> end = {};                   ///< it is the last one
  int64_t runtime_seconds = 0;                      ///< then
};

class WandbTarget {
 public:
  virtual ~WandbTarget() = default;
  /// Returns when all of it has arrived. @throws NetworkError, ResourceError
  virtual void take(const WandbBatch& batch) = 0;
};

/// A run at the service. @param run known to the service already
/// @param state what it has of the run
/// @param columns that the config defines already
std::unique_ptr<WandbTarget> make_wandb_stream(const WandbApi& api,
                                               const WandbRun& run,
                                               const WandbRunState& state,
                                               const std::vector<std::string>& columns);

/// The folder `offline-run-<time>-<id>` in `parent`, which `wandb sync` uploads.
/// @param[out] path of it. @throws ConfigError, ResourceError
std::unique_ptr<WandbTarget> make_wandb_folder(const std::string& parent,
                                               const WandbRun& run,
                                               std::string* path);

/// The sections of a config, a JSON object.
WandbItems wandb_items(const std::string& config);

/// The config of a run as the service stores it: {"key": {"value": ...}, "_wandb": ...}.
std::string wandb_config(const WandbItems& config, const std::vector<std::string>& columns);

}  // namespace dalle2
