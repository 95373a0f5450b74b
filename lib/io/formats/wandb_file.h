// SPDX-License-Identifier: MIT
// The `run-<id>.wandb` of a Weights & Biases run: what the service's own client writes offline and
// `wandb sync` uploads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files/disk_io.h"
#include "net/wandb_api.h"

namespace dalle2 {

/// Names and JSON texts; NaN and infinities stand as NaN, Infinity and -Infinity, as the client has
/// them.
using WandbItems = std::vector<std::pair<std::string, std::string>>;

/// What is known of a run when it begins.
struct WandbRun {
  WandbRunInfo info;  ///< its config is made of the next
  WandbItems config;  ///< one item a section
  double start_unix_seconds = 0;
  bool resumed = false;  ///< what follows is added to what the service has of the run
};

/// A new file: a log of the format of LevelDB (blocks of 32 KiB, checksums of zlib) with a protobuf
/// message a record (wandb_internal.proto). protozero writes the messages; leveldb is not used, for its
/// library neither offers its log nor has these checksums. Each record is handed to the system as it
/// comes: a kill of the process loses none.
class WandbFile {
 public:
  /// @throws ConfigError if it cannot be made, ResourceError if it cannot be written
  explicit WandbFile(std::string path);

  // All throw ResourceError if the file cannot be written.
  void write_run(const WandbRun& run);
  void write_history(const WandbItems& row, int64_t step);
  void write_summary(const WandbItems& values);
  /// `name` is a column of the history; its charts have the column `axis`. Without an axis it is one.
  void write_metric(const std::string& name, const std::string& axis);
  /// A file below `files/`, to be uploaded. @param media pictures and the like
  void write_file(const std::string& name, bool media);
  /// Figures of the machine.
  void write_stats(const WandbItems& values, double unix_seconds);
  /// A line of the console, without its end.
  void write_console(const std::string& line, bool is_error, double unix_seconds);
  /// The run was asked to stop, and continues later.
  void write_preempting();
  void write_exit(int exit_code, int64_t runtime_seconds);

  const std::string& path() const { return file_.path(); }

 private:
  void append(std::string_view body);

  RecordFile file_;
  int64_t records_ = 0;
};

}  // namespace dalle2
