// SPDX-License-Identifier: MIT
#include "tracker/run_folder/auto_resume.h"

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "tracker/run_folder/own_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Ours, beside the logger's attributes ("run_id" is W&B's).
constexpr const char* kRunIdKey = "dalle2_train_run_id";

[[noreturn]] void throw_unreadable(const std::string& path, const std::string& why) {
  throw ConfigError(
      "{}: unreadable: {}\n"
      "  It marks {} as a run to go on with. Write {{\"logger_type\": \"ConsoleLogger\"}} into it "
      "to go on with that run, or delete it to start a new one.",
      path,
      why,
      fs::path(path).parent_path().string());
}

Json read_mark(const std::string& path) {
  Json content = parse_untrusted_object(read_file(path));
  if (content.contains("logger_type") && content["logger_type"].is_string()) {
    return content;
  }
  throw_unreadable(path, "a JSON object with \"logger_type\" is expected");
}

/// Each key of the mark overwrites the logger's attribute of that name.
void set_attributes(const std::string& path, const Json& mark, Logger& logger) {
  for (const auto& [name, value] : mark.items()) {
    if (name == "logger_type" || name == kRunIdKey) continue;
    try {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (logger.set_attribute(name, text)) continue;
    } catch (const ConfigError& error) {
      throw_unreadable(path, error.what());
    }
    log_warning("track", "{}: \"{}\" is no attribute of {}", path, name, logger.type_name());
  }
}

}  // namespace

AutoResumeMark read_auto_resume(const std::string& path, Logger& logger) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    if (logger.auto_resume()) {
      log_info("track",
               "Auto_resume is enabled but no auto_resume.json file exists. Assuming this is the "
               "first run.");
    }
    return {};
  }
  if (!logger.auto_resume()) return {};
  const Json mark = read_mark(path);
  const std::string logger_type = mark["logger_type"].get<std::string>();
  if (logger_type != logger.type_name()) {
    throw ConfigError(
        "The logger type in the auto_resume file is {} but the current logger is {}. Either use "
        "the original logger type, set `auto_resume` to `False`, or choose another data_path: '{}' "
        "keeps what it holds.",
        logger_type,
        logger.type_name(),
        fs::path(path).parent_path().string());
  }
  set_attributes(path, mark, logger);
  AutoResumeMark found{.resumes = true};
  const auto id = mark.find(kRunIdKey);
  if (id != mark.end() && id->is_string() && is_run_id(id->get<std::string>())) {
    found.run_id = id->get<std::string>();
  }
  return found;
}

void write_auto_resume(const std::string& path, const Logger& logger, const std::string& run_id) {
  Json content;
  for (const auto& [key, value] : logger.resume_data()) content[key] = value;
  content["logger_type"] = logger.type_name();
  content[kRunIdKey] = run_id;
  write_file_atomically(path, content.dump());
}

}  // namespace dalle2
