// SPDX-License-Identifier: MIT
// Where records are shown. log.jsonl is not a logger: it is always kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/shared/tracker_config.h"
#include "tracker/log/record.h"

namespace dalle2 {

/// The folder of data_path with the event files of TensorBoard, unless the config names another.
inline constexpr const char* kTensorboardFolder = "tensorboard";

class Logger {
 public:
  explicit Logger(bool auto_resume) : auto_resume_(auto_resume) {}
  virtual ~Logger() = default;

  /// Its name in auto_resume.json, the reference's class name: "ConsoleLogger".
  virtual std::string type_name() const = 0;
  virtual void init() = 0;
  /// @param shown what of it is for people
  virtual void log(const LogRecord& record, const ShownRecord& shown, int64_t step) = 0;
  /// Whether log() prints a line for people.
  virtual bool prints_records() const = 0;
  /// @param images already stored below data_path
  virtual void log_images(const std::vector<StoredImage>& images,
                          const std::string& section,
                          int64_t step) = 0;
  virtual void log_error(const std::string& message) = 0;
  /// What a later run needs to go on with this log, beside the type's name: attributes by name.
  virtual std::map<std::string, std::string> resume_data() const = 0;
  /// Takes an attribute of auto_resume.json in place of the config's: a resumed run logs where the
  /// run before it did. @param value text as it is, anything else as JSON
  /// @return false if there is no such attribute. @throws ConfigError a value it cannot have
  virtual bool set_attribute(const std::string& name, const std::string& value) = 0;

  bool auto_resume() const { return auto_resume_; }

 private:
  bool auto_resume_;
};

/// The logger of a config. @throws ConfigError for one that is not available yet
std::unique_ptr<Logger> make_logger(const LogConfig& config, const std::string& data_path);

}  // namespace dalle2
