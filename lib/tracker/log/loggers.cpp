// SPDX-License-Identifier: MIT
#include "tracker/log/loggers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/formats/event_file.h"
#include "tracker/log/queued_logger.h"
#include "tracker/wandb/wandb_logger.h"

namespace dalle2 {
namespace {

/// Prints what of each record is for people, as one line (Loggers::log does).
class ConsoleLogger : public Logger {
 public:
  explicit ConsoleLogger(const ConsoleLogConfig& config) : Logger(config.auto_resume) {}

  std::string type_name() const override { return "ConsoleLogger"; }
  void init(const RunFacts&) override { log_info("track", "Logging to console"); }
  void log(const LogRecord&, const LogMoment&) override {}
  bool prints_records() const override { return true; }
  /// Differs from upstream, which says nothing: where the pictures lie.
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment) override {
    if (images.empty()) return;
    std::string what = images.front().path;
    if (images.size() > 1) what = fmt::format("{} pictures, from {}", images.size(), what);
    log_info("", "{}", record_line({{.label = section + ":", .values = {what}}}, moment.step));
  }
  void log_error(const std::string&, const LogMoment&) override {}
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
  void init(const RunFacts& facts) override {
    const std::string folder = log_dir_.value_or(default_folder_);
    events_.emplace(folder, facts.steps + 1);
    log_info("track", "Logging to TensorBoard: tensorboard --logdir {}", folder);
  }
  void log(const LogRecord& record, const LogMoment& moment) override {
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
  bool prints_records() const override { return verbose_; }
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment) override {
    EventSummary summary;
    std::string captions;
    for (size_t i = 0; i < images.size(); ++i) {
      summary.add_image(fmt::format("{}/{}", section, i), *images[i].png);
      if (!images[i].caption.empty()) captions += fmt::format("- {}: {}\n", i, images[i].caption);
    }
    if (!captions.empty()) summary.add_text(section + "/captions", captions);
    write(summary, moment);
  }
  void log_error(const std::string& message, const LogMoment& moment) override {
    EventSummary summary;
    summary.add_text("Errors", message);
    write(summary, moment);
  }
  std::map<std::string, std::string> resume_data() const override {
    // The default moves with data_path.
    if (!log_dir_) return {};
    return {{"log_dir", *log_dir_}};
  }
  bool set_attribute(const std::string& name, const std::string& value) override {
    if (name != "log_dir") return false;
    if (value.empty()) throw ConfigError("\"log_dir\" is empty; expected a folder");
    log_dir_ = value;
    return true;
  }

 private:
  void write(const EventSummary& summary, const LogMoment& moment) {
    if (!summary.empty()) events_->write(summary, moment.step, moment.unix_seconds);
  }

  std::optional<std::string> log_dir_;
  std::string default_folder_;
  bool verbose_;
  std::optional<EventFile> events_;
};

std::unique_ptr<Logger> make_logger(const LogConfig& config, const std::string& data_path) {
  if (const auto* console = std::get_if<ConsoleLogConfig>(&config)) {
    return std::make_unique<ConsoleLogger>(*console);
  }
  if (const auto* tensorboard = std::get_if<TensorboardLogConfig>(&config)) {
    return std::make_unique<TensorboardLogger>(
        *tensorboard, (std::filesystem::path(data_path) / kTensorboardFolder).string());
  }
  return std::make_unique<QueuedLogger>(
      std::make_unique<WandbLogger>(std::get<WandbLogConfig>(config)));
}

}  // namespace

Loggers::Loggers(const std::vector<LogConfig>& configs, const std::string& data_path) {
  for (const LogConfig& config : configs) loggers_.push_back(make_logger(config, data_path));
  failures_.resize(loggers_.size());
}

Loggers::Loggers(std::vector<std::unique_ptr<Logger>> loggers)
    : loggers_(std::move(loggers)), failures_(loggers_.size()) {}

bool Loggers::auto_resume() const {
  return std::any_of(
      loggers_.begin(), loggers_.end(), [](const auto& logger) { return logger->auto_resume(); });
}

bool Loggers::prints_records() const {
  return std::any_of(loggers_.begin(), loggers_.end(), [](const auto& logger) {
    return logger->prints_records();
  });
}

std::string Loggers::type_names() const {
  std::string names;
  for (const auto& logger : loggers_) names += (names.empty() ? "" : ", ") + logger->type_name();
  return names;
}

std::optional<std::string> Loggers::wandb_run() const {
  for (const auto& logger : loggers_) {
    if (logger->type_name() != "WandbLogger") continue;
    const std::map<std::string, std::string> data = logger->resume_data();
    if (!data.contains("run_id")) return std::nullopt;
    return data.at("entity") + "/" + data.at("project") + "/" + data.at("run_id");
  }
  return std::nullopt;
}

void Loggers::check() {
  for (const auto& logger : loggers_) logger->check();
}

void Loggers::init(const RunFacts& facts) {
  for (const auto& logger : loggers_) logger->init(facts);
}

/// A logger that fails costs its own record: the first failure is a warning, finish() counts them.
template <class Call>
void Loggers::for_each(Call&& call) {
  for (size_t i = 0; i < loggers_.size(); ++i) {
    try {
      call(*loggers_[i]);
    } catch (const std::exception& error) {
      if (failures_[i]++ > 0) continue;
      log_warning("track",
                  "{}: a record is lost; the run continues: {}",
                  loggers_[i]->type_name(),
                  error.what());
    }
  }
}

void Loggers::log(const LogRecord& record, const ShownRecord& shown, const LogMoment& moment) {
  if (!shown.empty() && prints_records()) log_info("", "{}", record_line(shown, moment.step));
  for_each([&](Logger& logger) { logger.log(record, moment); });
}

void Loggers::log_images(const std::vector<StoredImage>& images,
                         const std::string& section,
                         const LogMoment& moment) {
  for_each([&](Logger& logger) { logger.log_images(images, section, moment); });
}

void Loggers::log_error(const std::string& message, const LogMoment& moment) {
  dalle2::log_error("track", "{}", message);
  for_each([&](Logger& logger) { logger.log_error(message, moment); });
}

void Loggers::log_file(const std::string& name, const std::string& content) {
  for_each([&](Logger& logger) { logger.log_file(name, content); });
}

void Loggers::finish(const RunEnd& end, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(seconds));
  for_each([&](Logger& logger) { logger.set_deadline(deadline); });
  for_each([&](Logger& logger) { logger.finish(end); });
  for (size_t i = 0; i < loggers_.size(); ++i) {
    if (failures_[i] == 0) continue;
    log_warning("track", "{}: {} lost", loggers_[i]->type_name(), counted(failures_[i], "record"));
  }
}

}  // namespace dalle2
