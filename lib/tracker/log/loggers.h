// SPDX-License-Identifier: MIT
// The loggers of a run: each gets every record, and none can end the run or hold up another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/tracker_config.h"
#include "tracker/log/logger.h"

namespace dalle2 {

/// The folder of data_path with the event files of TensorBoard, unless the config names another.
inline constexpr const char* kTensorboardFolder = "tensorboard";

class Loggers {
 public:
  /// Of /tracker/log. @throws ConfigError
  Loggers(const std::vector<LogConfig>& configs, const std::string& data_path);
  /// Of tests.
  explicit Loggers(std::vector<std::unique_ptr<Logger>> loggers);

  /// A run resumes by itself if any of its loggers asks for it; then all continue.
  bool auto_resume() const;
  bool prints_records() const;
  /// "ConsoleLogger", or "ConsoleLogger, WandbLogger".
  std::string type_names() const;
  /// "entity/project/run_id" of the first logger to Weights & Biases; none if there is none, or it
  /// has no id yet.
  std::optional<std::string> wandb_run() const;
  const std::vector<std::unique_ptr<Logger>>& all() const { return loggers_; }

  /// @throws what a logger throws: nothing was logged yet
  void check();
  void init(const RunFacts& facts);

  /// @param shown what of the record is for people: a line, if a logger prints records
  void log(const LogRecord& record, const ShownRecord& shown, const LogMoment& moment);
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment);
  /// Prints the message too.
  void log_error(const std::string& message, const LogMoment& moment);
  void log_file(const std::string& name, const std::string& content);
  /// Lets all loggers end, within about `seconds`.
  void finish(const RunEnd& end, double seconds);

 private:
  template <class Call>
  void for_each(Call&& call);

  std::vector<std::unique_ptr<Logger>> loggers_;
  std::vector<int64_t> failures_;  // of each
};

}  // namespace dalle2
