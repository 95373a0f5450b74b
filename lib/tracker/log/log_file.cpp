// SPDX-License-Identifier: MIT
#include "tracker/log/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "base/python_format.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostWaiting = 1000;  ///< lines
constexpr size_t kMostReadBytes = size_t{4} << 20;
constexpr const char *kStep = "step", *kTime = "time";

std::string value_text(const LogValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return json_line(*text);
  const double real = std::get<double>(value);
  return std::isfinite(real) ? python_repr(real) : "null";
}

/// ", "step": 40, "time": 1700000000.125}": the end of a line.
std::string line_end(int64_t step, double time) {
  return fmt::format("\"{}\": {}, \"{}\": {:.3f}}}", kStep, step, kTime, time);
}

std::optional<int64_t> whole_number(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number_integer() ? std::optional(found->get<int64_t>())
                                                             : std::nullopt;
}

/// @param index of a series by its name
void add_record(RunLog& log,
                std::unordered_map<std::string, size_t>& index,
                const JournalLine& line) {
  const std::optional<int64_t> step = line.step();
  if (!step) {
    ++log.unreadable_lines;
    return;
  }
  ++log.records;
  for (const auto& [name, value] : line.record.items()) {
    if (!is_value(name)) continue;
    if (value.is_number() || value.is_null()) {
      const auto [place, is_new] = index.emplace(name, log.series.size());
      if (is_new) log.series.push_back({name, {}, {}});
      LogSeries& series = log.series[place->second];
      // Only a damaged log goes back without a mark: the later value counts.
      while (!series.steps.empty() && series.steps.back() > *step) {
        series.steps.pop_back();
        series.values.pop_back();
      }
      const double nan = std::numeric_limits<double>::quiet_NaN();
      series.steps.push_back(*step);
      series.values.push_back(value.is_null() ? nan : value.get<double>());
    } else if (value.is_array()) {
      log.pictures.push_back({name, *step, logged_pictures(value)});
    } else if (name == "error" && value.is_string()) {
      log.errors.emplace_back(*step, value.get<std::string>());
    }
  }
}

std::string shown_text(const LogValue& value, int digits) {
  if (const auto* number = std::get_if<int64_t>(&value)) return with_commas(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return short_number(std::get<double>(value), digits);
}

}  // namespace

std::string record_line(const ShownRecord& shown, int64_t step) {
  std::string line = fmt::format("step {}", step);
  for (const ShownValue& part : shown) {
    std::string separator = "  ";
    const auto add = [&](const std::string& text) {
      if (text.empty()) return;
      line += separator + text;
      separator = " ";
    };
    add(part.label);
    for (const LogValue& value : part.values) add(shown_text(value, part.digits));
    add(part.unit);
  }
  return line;
}

ShownRecord shown_in_full(const LogRecord& record) {
  ShownRecord shown;
  for (const auto& [name, value] : record) shown.push_back({.label = name, .values = {value}});
  return shown;
}

std::vector<StoredImage> logged_pictures(const Json& list) {
  std::vector<StoredImage> pictures;
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) continue;
    const bool has_caption = entry.contains("caption") && entry["caption"].is_string();
    pictures.push_back(
        {entry["path"].get<std::string>(), has_caption ? entry["caption"].get<std::string>() : ""});
  }
  return pictures;
}

std::optional<std::string> read_stored_picture(const std::string& data_path,
                                               const std::string& path) {
  const fs::path relative = fs::path(path).lexically_normal();
  if (relative.is_absolute() || relative.empty() || *relative.begin() == "..") return std::nullopt;
  const fs::path file = fs::path(data_path) / relative;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(file, error))) return std::nullopt;
  const fs::path folder = fs::canonical(data_path, error);
  const fs::path real = error ? fs::path() : fs::canonical(file, error);
  if (error || real.lexically_relative(folder) != relative) return std::nullopt;
  try {
    return read_file(file.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string format_record(const LogRecord& record, int64_t step, double time) {
  std::string line = "{";
  for (const auto& [name, value] : record) {
    line += json_line(name) + ": " + value_text(value) + ", ";
  }
  return line + line_end(step, time);
}

int64_t count_lines(const std::string& path, bool& torn) {
  std::ifstream file(path, std::ios::binary);
  int64_t lines = 0;
  char last = '\n';
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    last = *at;
    if (last == '\n') ++lines;
  }
  torn = last != '\n';
  return lines;
}

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw ConfigError("{}: cannot be written: {}", path_, errno_text(errno));
  written_ = count_lines(path_, torn_);
  if (torn_) append_line("");  // the end of that line
}

LogFile::~LogFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void LogFile::pass_over(int64_t lines) {
  if (this->lines() > lines) append_line(json_line(Json{{kResumedFrom, lines}}));
}

void LogFile::write(const LogRecord& record, int64_t step) {
  append_line(format_record(record, step, wall_time_seconds()));
}

void LogFile::write_images(const std::vector<StoredImage>& images,
                           const std::string& section,
                           int64_t step) {
  Json list = Json::array();
  for (const StoredImage& image : images) {
    const Json caption = image.caption.empty() ? Json(nullptr) : Json(image.caption);
    list.push_back({{"path", image.path}, {"caption", caption}});
  }
  append_line(fmt::format(
      "{{{}: {}, {}", json_line(section), json_line(list), line_end(step, wall_time_seconds())));
}

void LogFile::append_line(std::string line) {
  waiting_.push_back(std::move(line) + "\n");
  while (!waiting_.empty() && put(waiting_.front())) {
    waiting_.pop_front();
    ++written_;
  }
  // What is written in part is written to its end, so that the next one does not continue it.
  if (waiting_.size() > kMostWaiting) waiting_.erase(waiting_.begin() + (torn_ ? 1 : 0));
}

/// @return false if the disk refuses it, or the rest of it: a run is worth more than its log, and continues
bool LogFile::put(std::string& line) {
  while (!line.empty()) {
    const ssize_t count = ::write(descriptor_, line.data(), line.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (!std::exchange(warned_, true)) {
        log_warning("track",
                    "{}: cannot be written: {}\n  Up to {} lines wait in memory until it can.",
                    path_,
                    errno_text(errno),
                    kMostWaiting);
      }
      return false;
    }
    line.erase(0, static_cast<size_t>(count));
    torn_ = !line.empty();
  }
  warned_ = false;
  return true;
}

void LogFile::sync() const {
  ::fdatasync(descriptor_);
}

bool is_value(const std::string& name) {
  return name != kStep && name != kTime;
}

std::optional<int64_t> JournalLine::step() const {
  return whole_number(record, kStep);
}

double JournalLine::time() const {
  const auto found = record.find(kTime);
  return found != record.end() && found->is_number() ? found->get<double>() : 0;
}

std::optional<int64_t> JournalLine::resumed_from() const {
  return whole_number(record, kResumedFrom);
}

void LogLines::go_to(int64_t line) {
  if (line < next_) {
    file_.close();
    place_ = 0;
    next_ = 0;
  }
  seek();
  for (std::string passed; next_ < line && std::getline(file_, passed); ++next_)
    place_ += static_cast<std::streamoff>(passed.size()) + 1;
}

/// What was read ahead may have been a part of a line.
void LogLines::seek() {
  if (!file_.is_open()) file_.open(path_, std::ios::binary);
  file_.clear();
  file_.seekg(place_);
}

std::vector<JournalLine> LogLines::read(int64_t end, size_t most) {
  std::vector<JournalLine> lines;
  seek();
  size_t bytes = 0;
  for (std::string line; next_ < end && lines.size() < most && bytes < kMostReadBytes;) {
    if (!std::getline(file_, line)) break;
    lines.push_back({next_++, parse_untrusted_object(line)});
    bytes += line.size() + 1;
  }
  place_ += static_cast<std::streamoff>(bytes);
  return lines;
}

void LogLines::each(int64_t end, const std::function<void(const JournalLine& line)>& take) {
  for (std::vector<JournalLine> some; !(some = read(end, /*most=*/1000)).empty();)
    std::ranges::for_each(some, take);
}

RunLog read_run_log(const std::string& path) {
  errno = 0;
  std::ifstream lines(path, std::ios::binary);
  if (!lines) throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  std::vector<JournalLine> kept;
  for (std::string line; std::getline(lines, line);) {
    kept.push_back({static_cast<int64_t>(kept.size()), parse_untrusted_object(line)});
    const std::optional<int64_t> from = kept.back().resumed_from();
    if (!from || *from < 0 || *from >= static_cast<int64_t>(kept.size())) continue;
    // Lines keep their numbers: what is passed over stays as nothing.
    for (auto i = static_cast<size_t>(*from); i < kept.size(); ++i) kept[i].number = -1;
  }
  RunLog log;
  std::unordered_map<std::string, size_t> index;
  for (const JournalLine& line : kept) {
    if (line.number >= 0) add_record(log, index, line);
  }
  return log;
}

const LogSeries* find_series(const RunLog& log, const std::string& name) {
  const auto found = std::ranges::find_if(
      log.series, [&](const LogSeries& series) { return series.name == name; });
  return found == log.series.end() ? nullptr : &*found;
}

}  // namespace dalle2
