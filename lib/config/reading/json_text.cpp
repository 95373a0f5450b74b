// SPDX-License-Identifier: MIT
#include "config/reading/json_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

// Far more than any config has: what is done with the keys may take the square of their number.
constexpr JsonRules kConfigRules = {.most_levels = 100, .most_keys = 10'000, .comments = true};

// The value of an assignment: JSON, else the text itself.
Json value_of_assignment(const std::string& pointer, const std::string& text) {
  const auto refuse = [&](const std::string& fault) {
    throw ConfigError("--set {}: {}", as_utf8(pointer), fault);
  };
  for (const std::string& part : {pointer, text}) {
    if (const auto fault = utf8_fault(part)) refuse(*fault);
  }
  JsonRules rules = kConfigRules;
  rules.comments = false;
  ParsedJson parsed = parse_untrusted_json(text, rules);
  // A template may begin with {}.
  const bool is_meant_as_json = text.starts_with("[") || text.starts_with("{\"");
  if (parsed.is_no_json && !is_meant_as_json) return text;
  if (!parsed.is_right()) refuse(parsed.fault);
  return std::move(parsed.value);
}

/// Without what it sets to what: a value may be long and hold secrets.
std::string shown_assignment(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  return public_url(assignment.substr(0, equals)) + (equals == std::string::npos ? "" : "=...");
}

std::string trimmed(const std::string& text) {
  const char* kSpaces = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// The scanners below take texts of any length, which std::regex does not: it calls itself for each
// character.
bool is_digit(const std::string& text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}
bool is_sign(const std::string& text, size_t at) {
  return at < text.size() && (text[at] == '-' || text[at] == '+');
}

// The end of the digits that begin at `at`, which Python lets single underscores divide.
size_t digits_end(const std::string& text, size_t at) {
  while (is_digit(text, at)) {
    ++at;
    if (at < text.size() && text[at] == '_' && is_digit(text, at + 1)) ++at;
  }
  return at;
}

std::optional<double> number_of(const std::string& text) {
  std::string digits = trimmed(text);
  const size_t begin = is_sign(digits, 0) ? 1 : 0;
  size_t at = digits_end(digits, begin);
  bool has_digits = at > begin;
  if (at < digits.size() && digits[at] == '.') {
    const size_t end = digits_end(digits, at + 1);
    has_digits |= end > at + 1;
    at = end;
  }
  if (!has_digits) return std::nullopt;
  if (at < digits.size() && (digits[at] == 'e' || digits[at] == 'E')) {
    const size_t exponent = at + (is_sign(digits, at + 1) ? 2 : 1);
    at = digits_end(digits, exponent);
    if (at == exponent) return std::nullopt;
  }
  if (at != digits.size()) return std::nullopt;
  std::erase(digits, '_');
  return std::strtod(digits.c_str(), nullptr);
}

std::optional<int64_t> whole(double value) {
  // 2^63 is the first double beyond int64.
  if (!(std::abs(value) < 9223372036854775808.0) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> integer_of(const std::string& text) {
  std::string digits = trimmed(text);
  const size_t begin = is_sign(digits, 0) ? 1 : 0;
  const size_t end = digits_end(digits, begin);
  if (end == begin) return std::nullopt;
  if (end < digits.size()) {
    const bool zeros = digits[end] == '.' && end + 1 < digits.size() &&
                       digits.find_first_not_of('0', end + 1) == std::string::npos;
    if (!zeros) return std::nullopt;
  }
  digits.resize(end);
  std::erase(digits, '_');
  errno = 0;
  const int64_t value = std::strtoll(digits.c_str(), nullptr, 10);
  return errno == 0 ? std::optional(value) : std::nullopt;
}

constexpr const char* kAllowPipe = "/data/allow_pipe";

}  // namespace

std::string apply_override(Json& root, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || assignment[0] != '/') {
    throw ConfigError("--set \"{}\": expected /pointer=value, e.g. --set /train/lr=3e-4",
                      shown_assignment(assignment));
  }
  const std::string pointer = assignment.substr(0, equals);
  Json value = value_of_assignment(pointer, assignment.substr(equals + 1));
  try {
    std::deque<std::string> parts;
    for (Json::json_pointer path(pointer); !path.empty(); path.pop_back())
      parts.push_front(path.back());
    // Make the objects on the way; nlohmann would make lists of keys that look like numbers.
    Json* at = &root;
    for (const std::string& part : parts) {
      if (at->is_null()) *at = Json::object();
      // One past its end appends to a list.
      if (at->is_array() && part == std::to_string(at->size())) at->push_back(nullptr);
      if (!at->is_structured()) {
        throw ConfigError("--set {}: no such place in the config: it leads through the value {}",
                          pointer,
                          shown(*at));
      }
      at = at->is_array() ? &at->at(Json::json_pointer("/" + part)) : &(*at)[part];
    }
    *at = std::move(value);
  } catch (const Json::exception& error) {
    throw ConfigError("--set {}: no such place in the config: {}", pointer, json_error_text(error));
  }
  return pointer;
}

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  Json public_value = value;
  take_out_secrets(public_value);
  // Of keys, which are not values, the urls alone.
  const std::string text = without_tokens(
      public_text(public_value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return whole(value.get<double>());
  if (value.is_string()) return integer_of(value.get<std::string>());
  return std::nullopt;
}

std::optional<double> as_number(const Json& value) {
  std::optional<double> number;
  if (value.is_boolean()) number = value.get<bool>() ? 1 : 0;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) number = number_of(value.get<std::string>());
  if (number && !std::isfinite(*number)) return std::nullopt;
  return number;
}

std::optional<bool> as_boolean(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) {
    const double number = value.get<double>();
    if (number == 0 || number == 1) return number == 1;
  }
  if (value.is_string()) {
    const std::string word = lower_case(value.get<std::string>());
    for (const char* yes : {"1", "on", "t", "true", "y", "yes"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"0", "off", "f", "false", "n", "no"}) {
      if (word == no) return false;
    }
  }
  return std::nullopt;
}

std::string limits_text(const Limits& limits) {
  std::string text;
  if (std::isfinite(limits.low)) {
    text = fmt::format("{} {}", limits.low_open ? ">" : ">=", limits.low);
  }
  if (std::isfinite(limits.high)) {
    text += fmt::format(
        "{}{} {}", text.empty() ? "" : " and ", limits.high_open ? "<" : "<=", limits.high);
  }
  return text;
}

std::optional<std::string> limit_fault(const Limits& limits, double value, const std::string& got) {
  const bool low = limits.low_open ? value > limits.low : value >= limits.low;
  const bool high = limits.high_open ? value < limits.high : value <= limits.high;
  if (low && high) return std::nullopt;
  return fmt::format("must be {}, got {}", limits_text(limits), got);
}

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
  ParsedJson parsed = parse_untrusted_json(text, kConfigRules);
  if (!parsed.is_right()) throw ConfigError("{}: {}", origin, parsed.fault);
  for (const std::string& pointer : parsed.twice) {
    faults.error(pointer, "given twice; remove one of the two");
  }
  if (!parsed.value.is_object()) {
    throw ConfigError("{}: expected an object with the sections of a config, got {}",
                      origin,
                      shown(parsed.value));
  }
  return std::move(parsed.value);
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
