// SPDX-License-Identifier: MIT
#include "tracker/log/tensorboard_logger.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {

TensorboardLogger::TensorboardLogger(const TensorboardLogConfig& config, std::string default_folder)
    : Logger(config.auto_resume),
      log_dir_(config.log_dir),
      default_folder_(std::move(default_folder)),
      verbose_(config.verbose) {}

void TensorboardLogger::init(const RunFacts& /*facts*/) {
  const std::string folder = log_dir_.value_or(default_folder_);
  events_.emplace(folder);
  log_info("track", "Logging to TensorBoard: tensorboard --logdir {}", folder);
}

void TensorboardLogger::log(const LogRecord& record, const LogMoment& moment) {
  EventSummary summary;
  for (const auto& [name, value] : record) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      summary.add_text(name, *text);
    } else if (const auto* whole = std::get_if<int64_t>(&value)) {
      summary.add_scalar(name, static_cast<double>(*whole));
    } else {
      summary.add_scalar(name, std::get<double>(value));
    }
  }
  write(summary, moment);
}

void TensorboardLogger::log_images(const std::vector<StoredImage>& images,
                                   const std::string& section,
                                   const LogMoment& moment) {
  EventSummary summary;
  std::string captions;
  for (size_t i = 0; i < images.size(); ++i) {
    summary.add_image(fmt::format("{}/{}", section, i), *images[i].png);
    if (!images[i].caption.empty()) captions += fmt::format("- {}: {}\n", i, images[i].caption);
  }
  if (!captions.empty()) summary.add_text(section + "/captions", captions);
  write(summary, moment);
}

void TensorboardLogger::log_error(const std::string& message, const LogMoment& moment) {
  EventSummary summary;
  summary.add_text("Errors", message);
  write(summary, moment);
}

std::map<std::string, std::string> TensorboardLogger::resume_data() const {
  // The default moves with data_path.
  if (!log_dir_) return {};
  return {{"log_dir", *log_dir_}};
}

bool TensorboardLogger::set_attribute(const std::string& name, const std::string& value) {
  if (name != "log_dir") return false;
  if (value.empty()) throw ConfigError("\"log_dir\" is empty; expected a folder");
  log_dir_ = value;
  return true;
}

void TensorboardLogger::write(const EventSummary& summary, const LogMoment& moment) {
  if (!summary.empty()) events_->write(summary, moment.step, moment.unix_seconds);
}

}  // namespace dalle2
