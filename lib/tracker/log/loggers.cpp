// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "net/http_call.h"
#include "tracker/log/follower.h"
#include "tracker/run_folder/run_record.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Ours: one object a logger, in a file for several of them.
constexpr const char* kLoggersKey = "loggers";
constexpr const char* kTypeKey = "logger_type";

class ConsoleLogger : public Logger {
 public:
  ConsoleLogger() : Logger("ConsoleLogger") {}

  std::unique_ptr<JournalSink> make_sink(const RunFacts&) override {
    log_info("track", "Logging to console");
    return nullptr;
  }
};

/// Numbers become scalars of the record's names; texts, captions and errors TensorBoard's texts;
/// pictures "{section}/{number}". A file begins with a mark at which TensorBoard forgets what older files
/// have of a step and of later ones: so lines that a run did again, or that a kill left in doubt, are not
/// shown twice.
class TensorboardSink : public JournalSink {
 public:
  TensorboardSink(std::string folder, std::string key, std::string data_path)
      : folder_(std::move(folder)), key_(std::move(key)), data_path_(std::move(data_path)) {}

  std::string name() const override { return "TensorBoard"; }
  std::string key() const override { return key_; }

  int64_t connect(const LogCursors& cursors, int64_t written) override {
    steps_.clear();
    LogLines lines((fs::path(data_path_) / kLogFile).string());
    while (true) {
      const std::vector<JournalLine> some = lines.read(written, /*most=*/1000);
      if (some.empty()) break;
      for (const JournalLine& line : some) steps_.push_back(line.step().value_or(kNoStep));
    }
    // From the first of the lines whose steps the mark takes back.
    size_t line = static_cast<size_t>(cursors.furthest(key_).value_or(LogCursor{}).line);
    line = std::min(line, steps_.size());
    const int64_t from = least_step(line);
    while (from != kNoStep && line > 0 && steps_[line - 1] >= from) --line;
    steps_.resize(line);
    events_.emplace(folder_, from == kNoStep ? std::nullopt : std::optional(from));
    return static_cast<int64_t>(line);
  }

  void send(const std::vector<JournalLine>& lines) override {
    for (const JournalLine& line : lines) {
      if (const auto from = line.resumed_from()) begin_again(static_cast<size_t>(*from));
      const std::optional<int64_t> step = line.step();
      steps_.push_back(step.value_or(kNoStep));
      if (step) write(line);
    }
  }

 private:
  static constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();

  int64_t least_step(size_t line) const {
    int64_t least = kNoStep;
    for (; line < steps_.size(); ++line) least = std::min(least, steps_[line]);
    return least;
  }

  /// The lines from that one on were passed over.
  void begin_again(size_t line) {
    const int64_t from = least_step(line);
    if (from != kNoStep) events_.emplace(folder_, from);
  }

  void write(const JournalLine& line) {
    EventSummary summary;
    for (const auto& [name, value] : line.record.items()) {
      if (!is_value(name)) continue;
      if (value.is_array()) {
        add_pictures(summary, name, logged_pictures(value));
      } else if (value.is_string()) {
        summary.add_text(name == "error" ? "Errors" : name, value.get<std::string>());
      } else if (value.is_number() || value.is_null()) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        summary.add_scalar(name, value.is_null() ? nan : value.get<double>());
      }
    }
    if (!summary.empty()) events_->write(summary, *line.step(), line.time());
  }

  void add_pictures(EventSummary& summary,
                    const std::string& section,
                    const std::vector<StoredImage>& pictures) const {
    std::string captions;
    for (size_t i = 0; i < pictures.size(); ++i) {
      const auto png = read_stored_picture(data_path_, pictures[i].path);
      if (png && png_header(*png)) summary.add_image(fmt::format("{}/{}", section, i), *png);
      if (!pictures[i].caption.empty())
        captions += fmt::format("- {}: {}\n", i, pictures[i].caption);
    }
    if (!captions.empty()) summary.add_text(section + "/captions", captions);
  }

  std::string folder_, key_, data_path_;
  std::vector<int64_t> steps_;  // of all lines before the next
  std::optional<EventFile> events_;
};

class TensorboardLogger : public Logger {
 public:
  TensorboardLogger(const TensorboardLogConfig& config, std::string default_folder)
      : Logger("TensorboardLogger"),
        log_dir_(config.log_dir.value_or("")),
        default_folder_(std::move(default_folder)) {}

  std::unique_ptr<JournalSink> make_sink(const RunFacts& facts) override {
    const std::string& folder = log_dir_.empty() ? default_folder_ : log_dir_;
    log_info("track", "Logging to TensorBoard: tensorboard --logdir {}", folder);
    return std::make_unique<TensorboardSink>(
        folder,
        "tensorboard " + (log_dir_.empty() ? kTensorboardFolder : log_dir_),
        facts.data_path);
  }
  std::vector<std::pair<std::string, std::string*>> attributes() override {
    return {{"log_dir", &log_dir_}};
  }

 private:
  std::string log_dir_;  // empty: the default, which moves with data_path
  std::string default_folder_;
};

[[noreturn]] void throw_unreadable_mark(const std::string& path) {
  throw ConfigError(
      "{}: unreadable: expected a JSON object with \"logger_type\"\n  It says where the loggers of the "
      "run log to. Write {{\"logger_type\": \"ConsoleLogger\"}} into it, or remove it: they begin anew "
      "then.",
      path);
}

/// Each text of the mark overwrites the logger's attribute of that name; one that is empty says nothing.
void set_attributes(const Json& mark, Logger& logger) {
  for (const auto& [name, value] : logger.attributes()) {
    const std::string text = text_at(mark, {name});
    if (!text.empty()) *value = text;
  }
}

bool is_mark(const Json& mark) {
  return mark.is_object() && mark.contains(kTypeKey) && mark[kTypeKey].is_string();
}

}  // namespace

Loggers::Loggers(const std::vector<LogConfig>& configs, const std::string& data_path) {
  const std::string events = (fs::path(data_path) / kTensorboardFolder).string();
  for (const LogConfig& config : configs) {
    const bool is_console = std::holds_alternative<ConsoleLogConfig>(config);
    auto_resume_ |= std::visit([](const auto& log) { return log.auto_resume; }, config);
    prints_records_ |=
        is_console || std::visit([](const auto& log) { return log.verbose; }, config);
    if (is_console) loggers_.push_back(std::make_unique<ConsoleLogger>());
    if (const auto* tensorboard = std::get_if<TensorboardLogConfig>(&config))
      loggers_.push_back(std::make_unique<TensorboardLogger>(*tensorboard, events));
    if (const auto* wandb = std::get_if<WandbLogConfig>(&config)) {
      loggers_.push_back(std::make_unique<WandbLogger>(*wandb));
      if (first_wandb_ == nullptr) first_wandb_ = loggers_.back().get();
    }
  }
}

std::string Loggers::type_names() const {
  std::string names;
  for (const auto& logger : loggers_) names += (names.empty() ? "" : ", ") + logger->type_name();
  return names;
}

std::string Loggers::wandb_runs() const {
  std::string runs;
  for (const auto& logger : loggers_) {
    const std::string run = logger->wandb_run();
    runs += (runs.empty() || run.empty() ? "" : "\n") + run;
  }
  return runs;
}

void Loggers::check(Deadline deadline) const {
  for (const auto& logger : loggers_) logger->check(deadline);
}

void Loggers::read_auto_resume(const std::string& path) const {
  std::error_code ignored;
  if (!auto_resume() || !fs::exists(path, ignored)) return;
  const Json content = parse_untrusted_object(read_file(path));
  // The file itself for one logger, as in the reference; else a list in it.
  const Json marks =
      content.contains(kLoggersKey) ? content[kLoggersKey] : Json(Json::array_t{content});
  if (!marks.is_array() || marks.empty() || !std::all_of(marks.begin(), marks.end(), is_mark))
    throw_unreadable_mark(path);
  std::vector<Logger*> free;
  for (const auto& logger : loggers_) free.push_back(logger.get());
  for (const Json& mark : marks) {  // those of one type in order
    const std::string type = mark[kTypeKey].get<std::string>();
    const auto logger = std::find_if(
        free.begin(), free.end(), [&](Logger* known) { return known->type_name() == type; });
    if (logger == free.end()) {
      throw ConfigError(
          "The logger type in the auto_resume file is {} but the current logger is {}. Either use "
          "the original logger type, or choose another data_path: '{}' keeps what it holds.",
          type,
          type_names(),
          fs::path(path).parent_path().string());
    }
    set_attributes(mark, **logger);
    free.erase(logger);
  }
  for (const Logger* logger : free) {
    log_info(
        "track", "{}: not of the earlier starts, it begins with this one", logger->type_name());
  }
}

void Loggers::write_auto_resume(const std::string& path) const {
  std::vector<Json> marks;
  for (const auto& logger : loggers_) {
    Json& mark = marks.emplace_back(Json::object());
    for (const auto& [name, value] : logger->attributes()) {
      if (!value->empty()) mark[name] = *value;
    }
    mark[kTypeKey] = logger->type_name();
  }
  const Json content = marks.size() == 1 ? marks.front() : Json{{kLoggersKey, marks}};
  write_file_atomically(path, content.dump());
}

}  // namespace dalle2
