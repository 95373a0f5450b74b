// SPDX-License-Identifier: MIT
#include "tracker/log/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "net/http_call.h"
#include "net/url.h"
#include "tracker/run_folder/run_record.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

constexpr double kIdlePause = 15;        ///< seconds between two sends without lines
constexpr double kEndPause = 2;          ///< seconds between attempts at the end, at most
constexpr double kBetweenErrors = 3600;  ///< seconds, of the same logger in the log
constexpr double kBetweenSaves = 5;      ///< seconds, of followers.json
constexpr std::chrono::milliseconds kGlanceAtLog{500};

std::chrono::steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(value));
}

namespace fs = std::filesystem;

/// Ours: one object a logger, in a file for several of them.
constexpr const char* kLoggersKey = "loggers";
constexpr const char* kTypeKey = "logger_type";

class ConsoleLogger : public Logger {
 public:
  ConsoleLogger() : Logger("ConsoleLogger") {}

  bool begin(const RunFacts&) override {
    log_info("track", "Logging to console");
    return false;
  }
};

/// Numbers become scalars of the record's names; texts, captions and errors TensorBoard's texts;
/// pictures "{section}/{number}". A file begins with a mark at which TensorBoard forgets what older files
/// have of a step and of later ones: so lines that a run did again, or that a kill left in doubt, are not
/// shown twice. What is kept of these steps stands behind the mark again.
class TensorboardLogger : public Logger {
 public:
  explicit TensorboardLogger(const TensorboardLogConfig& config)
      : Logger("TensorboardLogger"), log_dir_(config.log_dir.value_or("")) {}

  bool begin(const RunFacts& facts) override {
    data_path_ = facts.data_path;
    folder_ = log_dir_.empty() ? (fs::path(data_path_) / kTensorboardFolder).string() : log_dir_;
    log_info("track", "Logging to TensorBoard: tensorboard --logdir {}", folder_);
    return true;
  }
  std::vector<std::pair<std::string, std::string*>> attributes() override {
    return {{"log_dir", &log_dir_}};
  }
  std::string name() const override { return "TensorBoard"; }
  std::string key() const override {
    return "tensorboard " + (log_dir_.empty() ? kTensorboardFolder : log_dir_);
  }

  int64_t connect(const LogCursors& cursors, int64_t written) override {
    steps_.clear();
    const int64_t line = std::min(cursors.furthest(key()).value_or(LogCursor{}).line, written);
    LogLines lines((fs::path(data_path_) / kLogFile).string());
    lines.each(line, [this](const JournalLine& known) { note(known); });
    int64_t from = kNoStep;  // of what a kill has left in doubt
    lines.each(written, [&](const JournalLine& next) {
      from = std::min(from, next.step().value_or(kNoStep));
    });
    begin_file(from);
    return line;
  }

  void send(const std::vector<JournalLine>& lines) override {
    for (const JournalLine& line : lines) {
      if (const int64_t from = note(line); from != kNoStep) begin_file(from);
      if (line.step()) write(line);
    }
  }

 private:
  static constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();

  /// @return the least step of those that the line passes over, which are no steps of the run any more
  int64_t note(const JournalLine& line) {
    int64_t least = kNoStep;
    const auto from = static_cast<size_t>(line.resumed_from().value_or(kNoStep));
    for (size_t i = from; i < steps_.size(); ++i)
      least = std::min(least, std::exchange(steps_[i], kNoStep));
    steps_.push_back(line.step().value_or(kNoStep));
    return least;
  }

  void begin_file(int64_t from) {
    events_.emplace(folder_, from == kNoStep ? std::nullopt : std::optional(from));
    const auto is_taken_back = [from](int64_t step) { return step >= from && step != kNoStep; };
    LogLines lines((fs::path(data_path_) / kLogFile).string());
    lines.go_to(std::ranges::find_if(steps_, is_taken_back) - steps_.begin());
    lines.each(static_cast<int64_t>(steps_.size()), [&](const JournalLine& line) {
      if (is_taken_back(steps_[static_cast<size_t>(line.number)])) write(line);
    });
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

  std::string log_dir_;  // empty: the default, which moves with data_path
  std::string folder_, data_path_;
  std::vector<int64_t> steps_;  // of all lines before the next: those that count
  std::optional<EventFile> events_;
};

}  // namespace

LogCursors::LogCursors(std::string path) : path_(std::move(path)) {
  try {
    const Json content = parse_untrusted_object(read_file(path_));
    for (const auto& [key, entry] : content.items()) {
      cursors_[key] = {std::max<int64_t>(entry.at("line").get<int64_t>(), 0),
                       entry.at("shift").get<int64_t>()};
    }
  } catch (const std::exception&) {  // each logger finds out by itself how far it is
  }
}

std::optional<LogCursor> LogCursors::furthest(const std::string& ending) const {
  const std::lock_guard lock(mutex_);
  std::optional<LogCursor> best;
  for (const auto& [key, cursor] : cursors_) {
    if (key.ends_with(ending) && (!best || best->line < cursor.line)) best = cursor;
  }
  return best;
}

std::optional<LogCursor> LogCursors::nearest(const std::string& key) const {
  const std::optional<LogCursor> own = furthest(key);
  const size_t run = key.rfind('/');
  return own || run == std::string::npos ? own : furthest(key.substr(run));
}

void LogCursors::set(const std::string& key, const LogCursor& cursor) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = cursors_.emplace(key, cursor);
  changed_ |= is_new || known->second.line != cursor.line || known->second.shift != cursor.shift;
  known->second = cursor;
}

void LogCursors::save() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(changed_, false)) return;
  Json content = Json::object();
  for (const auto& [key, cursor] : cursors_) {
    content[key] = {{"line", cursor.line}, {"shift", cursor.shift}};
  }
  try {
    write_file_atomically(path_, content.dump(1) + "\n");
  } catch (const Error&) {
    changed_ = true;
  }
}

Follower::Follower(std::shared_ptr<Logger> logger,
                   FollowedLog log,
                   LogCursors& cursors,
                   const FollowerTimes& times)
    : logger_(std::move(logger)),
      log_(std::move(log)),
      cursors_(cursors),
      times_(times),
      lines_(log_.file.path()) {}

Follower::~Follower() {
  logger_->cancel();
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Follower::connect_now(Deadline deadline) {
  const LogCursor known = cursors_.nearest(logger_->key()).value_or(LogCursor{});
  line_ = std::min(known.line, log_.file.written());
  if (const auto asked = logger_->away_seconds()) {
    away_ = fault_ = true;
    retry_at_ = times_.now() + seconds(*asked);
    return;
  }
  logger_->set_deadline(deadline);
  try {
    connect();
  } catch (const NetworkError& error) {
    // It does not want it: waiting alone changes nothing. An answer that is none may be a proxy's.
    const bool is_status = dynamic_cast<const HttpStatusError*>(&error) != nullptr;
    if (is_status && !may_pass(error)) throw;
    note_fault(error, /*at_end=*/false);
    // At the deadline it may only be slow: the end waits for its answers.
    fault_ = is_status || std::chrono::steady_clock::now() < deadline;
  }
  logger_->set_deadline(std::nullopt);
}

void Follower::begin_end(const RunEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    end_ = end;
  }
  wake_.notify_all();
}

Follower::Clock::time_point Follower::next_time() const {
  if (!connected_) return retry_at_;
  if (end_) return {};
  return sent_at_ + seconds(waiting() > 0 ? logger_->pause() : kIdlePause);
}

void Follower::work() {
  std::unique_lock lock(mutex_);
  bool tried_last = false;
  while (!logger_->is_cancelled() && !done_) {
    // The end tries once more, whatever the pause.
    const Clock::duration left = next_time() - times_.now();
    if (left > Clock::duration::zero() && (!end_ || tried_last)) {
      times_.wait(wake_, lock, std::min<Clock::duration>(left, kGlanceAtLog));
      continue;
    }
    const std::optional<RunEnd> end = end_;
    tried_last = end.has_value();
    lock.unlock();
    try_once(end);
    lock.lock();
  }
}

void Follower::try_once(const std::optional<RunEnd>& end) {
  try {
    log_.check();
  } catch (const Error&) {  // another start has taken the run over
    logger_->cancel();
    done_ = true;
    return;
  }
  bool done = false;
  try {
    if (!connected_) connect();
    if (!send_lines() && end) {
      logger_->end(*end);
      done = true;
    }
    note_success();
  } catch (const std::exception& error) {
    if (!logger_->is_cancelled()) note_fault(error, end.has_value());
  }
  if (!logger_->is_cancelled()) save_cursor(/*now=*/end.has_value());
  if (done) done_ = true;
}

void Follower::connect() {
  const int64_t line = logger_->connect(cursors_, log_.file.written());
  lines_.go_to(line);
  line_ = line;
  connected_ = true;
  cursors_.set(logger_->key(), {line, logger_->shift()});
  cursors_.save();  // no other place here knows the shift
}

/// @return whether there were any
bool Follower::send_lines() {
  const std::vector<JournalLine> lines = lines_.read(log_.file.written(), most_lines_);
  if (!lines.empty())
    log_.file.sync();  // nobody has what a crash of the machine may take from the log
  try {
    logger_->send(lines);
  } catch (const HttpStatusError& error) {
    if (error.status() != 413 || lines.size() < 2) throw;
    most_lines_ = lines.size() / 2;  // a proxy takes no more at once
    lines_.go_to(line_);
    return true;
  }
  sent_at_ = times_.now();
  line_ = lines_.next_line();
  return !lines.empty();
}

void Follower::note_success() {
  note_progress();
  fault_ = false;
  pause_ = 0;
  if (std::exchange(away_, false)) log_info("track", "{}: is back", logger_->name());
}

void Follower::note_fault(const std::exception& error, bool at_end) {
  fault_ = true;
  connected_ = false;
  pause_ = std::clamp(2 * pause_, times_.first_pause, at_end ? kEndPause : times_.longest_pause);
  if (const auto* status = dynamic_cast<const HttpStatusError*>(&error)) {
    pause_ = std::max(pause_, status->retry_after().value_or(0));
  }
  retry_at_ = times_.now() + seconds(pause_);
  const auto* network = dynamic_cast<const NetworkError*>(&error);
  const std::string text = fmt::format("{}: {}\n  {}", logger_->name(), error.what(), log_.advice);
  if (network != nullptr && may_pass(*network)) {
    if (!std::exchange(away_, true)) log_warning("track", "{}", text);
    return;
  }
  if (told_at_ && times_.now() < *told_at_ + seconds(kBetweenErrors)) return;
  told_at_ = times_.now();
  log_.log_error(text);
}

void Follower::save_cursor(bool now) {
  if (connected_) cursors_.set(logger_->key(), {line_.load(), logger_->shift()});
  if (!now && times_.now() < saved_at_ + seconds(kBetweenSaves)) return;
  saved_at_ = times_.now();
  cursors_.save();
}

Loggers::Loggers(const std::vector<LogConfig>& configs) {
  for (const LogConfig& config : configs) {
    const bool is_console = std::holds_alternative<ConsoleLogConfig>(config);
    auto_resume_ |= std::visit([](const auto& log) { return log.auto_resume; }, config);
    prints_records_ |=
        is_console || std::visit([](const auto& log) { return log.verbose; }, config);
    if (is_console) loggers_.push_back(std::make_shared<ConsoleLogger>());
    if (const auto* tensorboard = std::get_if<TensorboardLogConfig>(&config))
      loggers_.push_back(std::make_shared<TensorboardLogger>(*tensorboard));
    if (const auto* wandb = std::get_if<WandbLogConfig>(&config))
      loggers_.push_back(std::make_shared<WandbLogger>(*wandb));
  }
}

std::string Loggers::type_names() const {
  std::string names;
  for (const auto& logger : loggers_) names += (names.empty() ? "" : ", ") + logger->type();
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
  const auto is_mark = [](const Json& mark) { return !text_at(mark, {kTypeKey}).empty(); };
  if (!marks.is_array() || marks.empty() || !std::ranges::all_of(marks, is_mark))
    throw ConfigError(
        "{}: unreadable: expected a JSON object with \"logger_type\"\n  It says where the loggers of the "
        "run log to. Write {{\"logger_type\": \"ConsoleLogger\"}} into it, or remove it: they begin anew "
        "then.",
        path);
  std::vector<Logger*> free;
  for (const auto& logger : loggers_) free.push_back(logger.get());
  for (const Json& mark : marks) {  // those of one type in order
    const std::string type = mark[kTypeKey].get<std::string>();
    const auto logger =
        std::ranges::find_if(free, [&](Logger* known) { return known->type() == type; });
    if (logger == free.end()) {
      throw ConfigError(
          "The logger type in the auto_resume file is {} but the current logger is {}. Either use "
          "the original logger type, or choose another data_path: '{}' keeps what it holds.",
          type,
          type_names(),
          fs::path(path).parent_path().string());
    }
    for (const auto& [name, value] : (*logger)->attributes())
      *value = first_of({text_at(mark, {name}), *value});  // an empty text says nothing
    free.erase(logger);
  }
  for (const Logger* logger : free) {
    log_info("track", "{}: not of the earlier starts, it begins with this one", logger->type());
  }
}

void Loggers::write_auto_resume(const std::string& path) const {
  std::vector<Json> marks;
  for (const auto& logger : loggers_) {
    Json& mark = marks.emplace_back(Json::object());
    for (const auto& [name, value] : logger->attributes()) {
      if (!value->empty()) mark[name] = *value;
    }
    mark[kTypeKey] = logger->type();
  }
  const Json content = marks.size() == 1 ? marks.front() : Json{{kLoggersKey, marks}};
  write_file_atomically(path, content.dump());
}

}  // namespace dalle2
