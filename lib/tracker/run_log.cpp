// SPDX-License-Identifier: MIT
#include "tracker/run_log.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/untrusted_json.h"

namespace dalle2 {
namespace {

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
    while (!series.steps.empty() && series.steps.back() >= step) {
      series.steps.pop_back();
      series.values.pop_back();
    }
    series.steps.push_back(step);
    series.values.push_back(value);
  }

  void add_pictures(const std::string& section, int64_t step, const Json& list) {
    LoggedPictures logged{section, step, {}};
    for (const Json& entry : list) {
      if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) continue;
      const bool has_caption = entry.contains("caption") && entry["caption"].is_string();
      logged.pictures.push_back({entry["path"].get<std::string>(),
                                 has_caption ? entry["caption"].get<std::string>() : ""});
    }
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

RunLog read_run_log(const std::string& path) {
  errno = 0;
  std::ifstream lines(path, std::ios::binary);
  if (!lines) throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  LogReader reader;
  for (std::string line; std::getline(lines, line);) {
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
