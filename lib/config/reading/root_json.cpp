// SPDX-License-Identifier: MIT
#include "config/reading/root_json.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "config/reading/coerce.h"

namespace dalle2 {
namespace {

constexpr const char* kAllowPipe = "/data/allow_pipe";

}  // namespace

std::string read_config_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError("{}: expected a JSON file, got a folder", path);
  }
  // A pipe gives its text once, and the config is asked for several times.
  static std::map<std::string, std::string> piped;
  const bool is_pipe = std::filesystem::is_fifo(path, ignored);
  if (const auto known = piped.find(path); is_pipe && known != piped.end()) return known->second;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && file.peek() == std::ifstream::traits_type::eof() && file.eof() && errno == 0) {
    throw ConfigError("{}: {}",
                      path,
                      is_pipe
                          ? "the pipe is empty: what wrote to it failed, or another process has "
                            "read it; several processes need a config in a file"
                          : "the file is empty; configs/ has examples");
  }
  if (file) text << file.rdbuf();
  if (!file || text.fail()) {
    throw ConfigError("{}: cannot read the config: {}", path, errno_text(errno == 0 ? EIO : errno));
  }
  if (is_pipe) piped[path] = text.str();
  return text.str();
}

Json parse_root(const std::string& text, const std::string& origin, Faults& faults) {
  Json root = parse_json(text, origin, faults);
  if (!root.is_object()) {
    throw ConfigError(
        "{}: expected an object with the sections of a config, got {}", origin, shown(root));
  }
  return root;
}

bool allows_pipe(const Json& root) {
  const Json::json_pointer pointer(kAllowPipe);
  return root.contains(pointer) && as_boolean(root.at(pointer)).value_or(false);
}

void check_commands(const ShardDataConfig& data, bool file_allows_pipe, Faults& faults) {
  if (faults.has_error_under("/data")) return;
  if (data.allow_pipe && !file_allows_pipe) {
    faults.error(kAllowPipe,
                 "only the config file itself can allow commands, --set cannot: write "
                 "\"allow_pipe\": true into its \"data\" if you trust them");
  } else if (!data.allow_pipe && data.names_pipe()) {
    faults.error(kAllowPipe,
                 "is false, and an url is a command (\"pipe:...\"), which would run on this "
                 "machine with your rights: write \"allow_pipe\": true into the \"data\" of the "
                 "config file if you trust it");
  }
}

}  // namespace dalle2
