// SPDX-License-Identifier: MIT
// The loggers of a run: what the config asks for, and whether it may log.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/tracker_config.h"
#include "tracker/log/logger.h"

namespace dalle2 {

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
  /// "entity/project/run_id" of the loggers to Weights & Biases, until one that has no id yet.
  std::vector<std::string> wandb_runs() const;
  /// Of the first of them; none if there is none.
  std::optional<std::string> wandb_run() const;
  const std::vector<std::unique_ptr<Logger>>& all() const { return loggers_; }

  /// @throws ConfigError, NetworkError: a refusal
  void check(Logger::Deadline deadline) const;

 private:
  std::vector<std::unique_ptr<Logger>> loggers_;
};

}  // namespace dalle2
