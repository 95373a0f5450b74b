// SPDX-License-Identifier: MIT
#include "tracker/run_folder/auto_resume.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Ours: one object a logger, in a file for several of them.
constexpr const char* kLoggersKey = "loggers";
constexpr const char* kTypeKey = "logger_type";

[[noreturn]] void throw_unreadable(const std::string& path, const std::string& why) {
  throw ConfigError(
      "{}: unreadable: {}\n  It says where the loggers of the run log to. Write {{\"logger_type\": "
      "\"ConsoleLogger\"}} into it, or remove it: they begin anew then.",
      path,
      why);
}

/// Each key of the mark overwrites the logger's attribute of that name.
void set_attributes(const std::string& path, const Json& mark, Logger& logger) {
  for (const auto& [name, value] : mark.items()) {
    if (name == kTypeKey) continue;
    try {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (logger.set_attribute(name, text)) continue;
    } catch (const ConfigError& error) {
      throw_unreadable(path, error.what());
    }
    log_warning("track", "{}: \"{}\" is not an attribute of {}", path, name, logger.type_name());
  }
}

bool is_mark(const Json& mark) {
  return mark.is_object() && mark.contains(kTypeKey) && mark[kTypeKey].is_string();
}

}  // namespace

void read_auto_resume(const std::string& path, const Loggers& loggers) {
  std::error_code ignored;
  if (!loggers.auto_resume() || !fs::exists(path, ignored)) return;
  const Json content = parse_untrusted_object(read_file(path));
  // The file itself for one logger, as in the reference; else a list in it.
  const Json marks =
      content.contains(kLoggersKey) ? content[kLoggersKey] : Json(Json::array_t{content});
  if (!marks.is_array() || marks.empty() || !std::all_of(marks.begin(), marks.end(), is_mark))
    throw_unreadable(path, "expected a JSON object with \"logger_type\"");
  std::vector<Logger*> free;
  for (const auto& logger : loggers.all()) free.push_back(logger.get());
  for (const Json& mark : marks) {  // those of one type in order
    const std::string type = mark[kTypeKey].get<std::string>();
    const auto logger = std::find_if(
        free.begin(), free.end(), [&](Logger* known) { return known->type_name() == type; });
    if (logger == free.end()) {
      throw ConfigError(
          "The logger type in the auto_resume file is {} but the current logger is {}. Either use "
          "the original logger type, or choose another data_path: '{}' keeps what it holds.",
          type,
          loggers.type_names(),
          fs::path(path).parent_path().string());
    }
    set_attributes(path, mark, **logger);
    free.erase(logger);
  }
  for (const Logger* logger : free) {
    log_info(
        "track", "{}: not of the earlier starts, it begins with this one", logger->type_name());
  }
}

void write_auto_resume(const std::string& path, const Loggers& loggers) {
  std::vector<Json> marks;
  for (const auto& logger : loggers.all()) {
    Json& mark = marks.emplace_back(Json::object());
    for (const auto& [key, value] : logger->resume_data()) mark[key] = value;
    mark[kTypeKey] = logger->type_name();
  }
  const Json content = marks.size() == 1 ? marks.front() : Json{{kLoggersKey, marks}};
  write_file_atomically(path, content.dump());
}

}  // namespace dalle2
