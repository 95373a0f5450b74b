// SPDX-License-Identifier: MIT
#include "tracker/log/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/python_format.h"
#include "base/untrusted_json.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResumedFrom = "resumed_from_line";

std::string value_text(const LogValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return json_line(*text);
  const double real = std::get<double>(value);
  return std::isfinite(real) ? python_repr(real) : "null";
}

/// Ends a line that a kill left half-written, and counts the lines.
int64_t ended_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  int64_t lines = 0;
  char last = '\n';
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    last = *at;
    if (last == '\n') ++lines;
  }
  if (last == '\n') return lines;
  std::ofstream(path, std::ios::binary | std::ios::app) << '\n';
  return lines + 1;
}

/// The number in a mark that a resume has left; none of another line.
std::optional<int64_t> resumed_from(const std::string& line) {
  if (line.find(kResumedFrom) == std::string::npos) return std::nullopt;
  const Json record = parse_untrusted_object(line);
  const auto mark = record.find(kResumedFrom);
  return mark != record.end() && mark->is_number_integer() ? std::optional(mark->get<int64_t>())
                                                           : std::nullopt;
}

class LogReader {
 public:
  void add(const std::string& line) {
    const Json record = parse_untrusted_object(line);
    if (!record.contains("step") || !record["step"].is_number_integer()) {
      ++log_.unreadable_lines;
      return;
    }
    ++log_.records;
    const int64_t step = record["step"].get<int64_t>();
    for (const auto& [name, value] : record.items()) {
      if (name == "step") continue;
      if (value.is_number() || value.is_null()) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        add_value(name, step, value.is_null() ? nan : value.get<double>());
      } else if (value.is_array()) {
        add_pictures(name, step, value);
      } else if (name == "error" && value.is_string()) {
        log_.errors.emplace_back(step, value.get<std::string>());
      }
    }
  }

  RunLog take() { return std::move(log_); }

 private:
  void add_value(const std::string& name, int64_t step, double value) {
    const auto [place, is_new] = index_.emplace(name, log_.series.size());
    if (is_new) log_.series.push_back({name, {}, {}});
    LogSeries& series = log_.series[place->second];
    while (!series.steps.empty() && series.steps.back() >= step) {  // a log without marks
      series.steps.pop_back();
      series.values.pop_back();
    }
    series.steps.push_back(step);
    series.values.push_back(value);
  }

  void add_pictures(const std::string& section, int64_t step, const Json& list) {
    LoggedPictures logged{section, step, logged_pictures(list)};
    const auto [last, is_new] = last_pictures_.emplace(section, step);
    if (!is_new && last->second >= step) {
      std::erase_if(log_.pictures, [&](const LoggedPictures& earlier) {
        return earlier.section == section && earlier.step >= step;
      });
    }
    last->second = step;
    log_.pictures.push_back(std::move(logged));
  }

  RunLog log_;
  std::unordered_map<std::string, size_t> index_;           // of a series by its name
  std::unordered_map<std::string, int64_t> last_pictures_;  // step by section
};

}  // namespace

std::vector<LoggedPicture> logged_pictures(const Json& list) {
  std::vector<LoggedPicture> pictures;
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) continue;
    const bool has_caption = entry.contains("caption") && entry["caption"].is_string();
    pictures.push_back(
        {entry["path"].get<std::string>(), has_caption ? entry["caption"].get<std::string>() : ""});
  }
  return pictures;
}

std::optional<std::string> stored_picture(const std::string& data_path, const std::string& path) {
  const fs::path relative = fs::path(path).lexically_normal();
  if (relative.is_absolute() || relative.empty() || *relative.begin() == "..") return std::nullopt;
  const fs::path file = fs::path(data_path) / relative;
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(file, error))) return std::nullopt;
  const fs::path folder = fs::canonical(data_path, error);
  const fs::path real = error ? fs::path() : fs::weakly_canonical(file, error);
  if (error || real.lexically_relative(folder) != relative) return std::nullopt;
  return file.string();
}

std::string format_record(const LogRecord& record, int64_t step) {
  std::string line = "{";
  for (const auto& [name, value] : record) {
    line += json_line(name) + ": " + value_text(value) + ", ";
  }
  return line + "\"step\": " + std::to_string(step) + "}";
}

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  try {
    if (fs::exists(path_)) records_ = lines_ = ended_lines(path_);
  } catch (const std::ios_base::failure&) {  // a folder
    throw ConfigError("{}: the log cannot be continued: it cannot be read", path_);
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw ConfigError("{}: cannot be written: {}", path_, errno_text(errno));
}

LogFile::~LogFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      records_(other.records_),
      lines_(other.lines_),
      warned_(other.warned_) {}

void LogFile::pass_over(int64_t lines) {
  if (lines_ > lines) append_line(json_line(Json{{kResumedFrom, lines}}));
}

void LogFile::write(const LogRecord& record, int64_t step) {
  append_line(format_record(record, step));
}

void LogFile::write_images(const std::vector<StoredImage>& images,
                           const std::string& section,
                           int64_t step) {
  Json record;
  Json& list = record[section] = Json::array();
  for (const StoredImage& image : images) {
    Json entry;
    entry["path"] = image.path;
    if (image.caption.empty()) {
      entry["caption"] = nullptr;
    } else {
      entry["caption"] = image.caption;
    }
    list.push_back(std::move(entry));
  }
  record["step"] = step;
  append_line(json_line(record));
}

void LogFile::append_line(const std::string& line) {
  const std::string bytes = line + "\n";
  ++records_;  // a line that a full disk takes no more is counted: numbers stay unique
  struct stat before = {};
  const bool known = ::fstat(descriptor_, &before) == 0;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(descriptor_, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // A run is worth more than its log: leave no half line, say so once, and continue.
      if (known && written > 0 && ::ftruncate(descriptor_, before.st_size) != 0) written = 0;
      if (!warned_)
        log_warning("track", "{}: records are being lost: {}", path_, errno_text(reason));
      warned_ = true;
      return;
    }
    written += static_cast<size_t>(count);
  }
  warned_ = false;
  ++lines_;
}

void for_each_record(const std::string& path,
                     int64_t first,
                     const std::function<void(int64_t number, const Json& record)>& take) {
  std::ifstream lines(path, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    if (number < first) continue;
    const Json record = parse_untrusted_object(line);
    if (record.contains("step") && record["step"].is_number_integer()) take(number, record);
  }
}

RunLog read_run_log(const std::string& path) {
  errno = 0;
  std::ifstream lines(path, std::ios::binary);
  if (!lines) throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  std::vector<std::string> kept;
  for (std::string line; std::getline(lines, line); kept.push_back(std::move(line))) {
    const std::optional<int64_t> from = resumed_from(line);
    const auto count = static_cast<int64_t>(kept.size());
    if (!from || *from < 0 || *from > count) continue;
    // Lines keep their numbers: what is passed over stays as nothing.
    for (int64_t i = *from; i < count; ++i) kept[static_cast<size_t>(i)].clear();
    line.clear();
  }
  LogReader reader;
  for (const std::string& line : kept) {
    if (!line.empty()) reader.add(line);
  }
  return reader.take();
}

const LogSeries* find_series(const RunLog& log, const std::string& name) {
  const auto found = std::find_if(log.series.begin(),
                                  log.series.end(),
                                  [&](const LogSeries& series) { return series.name == name; });
  return found == log.series.end() ? nullptr : &*found;
}

}  // namespace dalle2
