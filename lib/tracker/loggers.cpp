// SPDX-License-Identifier: MIT
#include "tracker/loggers.h"

#include "base/error.h"
#include "base/log.h"
#include "tracker/tensorboard_logger.h"

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

}  // namespace

std::unique_ptr<Logger> make_logger(const LogConfig& config, const std::string& data_path) {
  if (const auto* console = std::get_if<ConsoleLogConfig>(&config)) {
    return std::make_unique<ConsoleLogger>(*console);
  }
  if (const auto* tensorboard = std::get_if<TensorboardLogConfig>(&config)) {
    return make_tensorboard_logger(*tensorboard, data_path);
  }
  throw ConfigError("/tracker/log/log_type: 'wandb' is not available yet, use 'console'");
}

}  // namespace dalle2
