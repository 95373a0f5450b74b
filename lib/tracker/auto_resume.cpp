// SPDX-License-Identifier: MIT
#include "tracker/auto_resume.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "io/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

std::string read_logger_type(const std::string& path) {
  const nlohmann::json content =
      nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (content.is_object() && content.contains("logger_type") &&
      content["logger_type"].is_string()) {
    return content["logger_type"].get<std::string>();
  }
  throw ConfigError(
      "{}: unreadable: a JSON object with \"logger_type\" is expected\n"
      "  It marks {} as a run to go on with. Write {{\"logger_type\": \"ConsoleLogger\"}} into it "
      "to go on\n"
      "  with that run, or delete it to start a new one.",
      path,
      fs::path(path).parent_path().string());
}

}  // namespace

bool read_auto_resume(const std::string& path, const Logger& logger) {
  if (!fs::exists(path)) {
    if (logger.auto_resume()) {
      log_info("track",
               "Auto_resume is enabled but no auto_resume.json file exists. Assuming this is the "
               "first run.");
    }
    return false;
  }
  if (!logger.auto_resume()) {
    log_info("track", "Removing auto_resume.json because auto_resume is not enabled in the config");
    fs::remove(path);
    return false;
  }
  const std::string logger_type = read_logger_type(path);
  if (logger_type != logger.type_name()) {
    throw ConfigError(
        "The logger type in the auto_resume file is {} but the current logger is {}. Either use "
        "the original logger type, set `auto_resume` to `False`, or delete your existing "
        "tracker-data folder ({}).",
        logger_type,
        logger.type_name(),
        fs::path(path).parent_path().string());
  }
  log_warning("track",
              "RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE {}.\n"
              "  If this was not your intention, stop this run and set `auto_resume` to `False` in "
              "the config.",
              logger.type_name());
  return true;
}

void write_auto_resume(const std::string& path, const Logger& logger) {
  nlohmann::ordered_json content;
  for (const auto& [key, value] : logger.resume_data()) content[key] = value;
  content["logger_type"] = logger.type_name();
  write_file_atomically(path, content.dump());
}

}  // namespace dalle2
