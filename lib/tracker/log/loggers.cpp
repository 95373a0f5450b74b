// SPDX-License-Identifier: MIT
#include "tracker/log/loggers.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "io/formats/event_file.h"

namespace dalle2 {
namespace {

/// Prints what of each record is for people, as one line.
class ConsoleLogger : public Logger {
 public:
  explicit ConsoleLogger(const ConsoleLogConfig& config) : Logger(config.auto_resume) {}

  std::string type_name() const override { return "ConsoleLogger"; }
  void init() override { log_info("track", "Logging to console"); }
  void log(const LogRecord& /*record*/, const ShownRecord& shown, int64_t step) override {
    if (!shown.empty()) log_info("", "{}", record_line(shown, step));
  }
  bool prints_records() const override { return true; }
  /// Differs from upstream, which says nothing: where the pictures lie.
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  int64_t step) override {
    if (images.empty()) return;
    std::string what = images.front().path;
    if (images.size() > 1) what = fmt::format("{} pictures, from {}", images.size(), what);
    log_info("", "{}", record_line({{.label = section + ":", .values = {what}}}, step));
  }
  void log_error(const std::string& message) override { dalle2::log_error("track", "{}", message); }
  std::map<std::string, std::string> resume_data() const override { return {}; }
  bool set_attribute(const std::string&, const std::string&) override { return false; }
};

/// Numbers become scalars of the record's names; texts, captions and errors TensorBoard's texts;
/// pictures "{section}/{number}".
class TensorboardLogger : public Logger {
 public:
  TensorboardLogger(const TensorboardLogConfig& config, std::string default_folder)
      : Logger(config.auto_resume),
        log_dir_(config.log_dir),
        default_folder_(std::move(default_folder)),
        verbose_(config.verbose) {}

  std::string type_name() const override { return "TensorboardLogger"; }

  void init() override {
    const std::string folder = log_dir_.value_or(default_folder_);
    events_.emplace(folder);
    log_info("track", "Logging to TensorBoard: tensorboard --logdir {}", folder);
  }

  void log(const LogRecord& record, const ShownRecord& shown, int64_t step) override {
    if (verbose_ && !shown.empty()) log_info("", "{}", record_line(shown, step));
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
    write(summary, step);
  }

  bool prints_records() const override { return verbose_; }

  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  int64_t step) override {
    EventSummary summary;
    std::string captions;
    for (size_t i = 0; i < images.size(); ++i) {
      summary.add_image(fmt::format("{}/{}", section, i), images[i].png);
      if (!images[i].caption.empty()) captions += fmt::format("- {}: {}\n", i, images[i].caption);
    }
    if (!captions.empty()) summary.add_text(section + "/captions", captions);
    write(summary, step);
    last_step_ = step;
  }

  void log_error(const std::string& message) override {
    dalle2::log_error("track", "{}", message);
    EventSummary summary;
    summary.add_text("Errors", message);
    write(summary, last_step_);
  }

  std::map<std::string, std::string> resume_data() const override {
    // The default moves with data_path.
    if (!log_dir_) return {};
    return {{"log_dir", *log_dir_}};
  }
  bool set_attribute(const std::string& name, const std::string& value) override {
    if (name != "log_dir") return false;
    if (value.empty()) throw ConfigError("\"log_dir\" is empty, a folder is expected");
    log_dir_ = value;
    return true;
  }

 private:
  void write(const EventSummary& summary, int64_t step) {
    if (!summary.empty()) events_->write(summary, step, wall_time_seconds());
    last_step_ = step;
  }

  std::optional<std::string> log_dir_;
  std::string default_folder_;
  bool verbose_;
  std::optional<EventFile> events_;
  int64_t last_step_ = 0;
};

}  // namespace

std::unique_ptr<Logger> make_logger(const LogConfig& config, const std::string& data_path) {
  if (const auto* console = std::get_if<ConsoleLogConfig>(&config)) {
    return std::make_unique<ConsoleLogger>(*console);
  }
  if (const auto* tensorboard = std::get_if<TensorboardLogConfig>(&config)) {
    return std::make_unique<TensorboardLogger>(
        *tensorboard, (std::filesystem::path(data_path) / kTensorboardFolder).string());
  }
  throw ConfigError("/tracker/log/log_type: 'wandb' is not available yet, use 'console'");
}

}  // namespace dalle2
