// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/tracker_config.h"
#include "io/formats/event_file.h"
#include "tracker/log/logger.h"

namespace dalle2 {

/// Numbers become scalars of the record's names; texts, captions and errors TensorBoard's texts;
/// pictures "{section}/{number}".
class TensorboardLogger : public Logger {
 public:
  TensorboardLogger(const TensorboardLogConfig& config, std::string default_folder);

  std::string type_name() const override { return "TensorboardLogger"; }
  void init(const RunFacts& facts) override;
  void log(const LogRecord& record, const LogMoment& moment) override;
  bool prints_records() const override { return verbose_; }
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment) override;
  void log_error(const std::string& message, const LogMoment& moment) override;
  std::map<std::string, std::string> resume_data() const override;
  bool set_attribute(const std::string& name, const std::string& value) override;

 private:
  void write(const EventSummary& summary, const LogMoment& moment);

  std::optional<std::string> log_dir_;
  std::string default_folder_;
  bool verbose_;
  std::optional<EventFile> events_;
};

}  // namespace dalle2
