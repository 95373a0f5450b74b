// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/public_url.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

constexpr int kUsualColumns = 80;
constexpr int kMostColumns = 10'000;

/// The bytes of the first `columns` characters.
size_t bytes_of(std::string_view line, int columns) {
  for (size_t at = 0; at < line.size(); ++at) {
    if (begins_character(line[at]) && columns-- == 0) return at;
  }
  return line.size();
}

/// Where to break a line of which `fits` bytes fit: at the first blank of a gap. Blanks at its
/// beginning are not gaps.
std::optional<size_t> break_of(std::string_view line, size_t fits) {
  const size_t begin = line.find_first_not_of(' ');
  const size_t wide = line.rfind("  ", fits);
  if (wide != std::string_view::npos && wide > begin && wide >= fits / 2) {
    return line.find_last_not_of(' ', wide) + 1;
  }
  size_t gap = line.rfind(' ', fits);
  if (gap == std::string_view::npos || gap < begin) gap = line.find(' ', std::max(fits, begin));
  if (gap == std::string_view::npos) return std::nullopt;
  return line.find_last_not_of(' ', gap) + 1;
}

std::string wrapped_line(std::string_view line, int columns) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size()) + 2;
  std::string out, rest(line);
  for (;;) {
    const size_t fits = bytes_of(rest, columns);
    if (fits == rest.size()) break;
    const std::optional<size_t> at = break_of(rest, fits);
    if (!at) break;
    const size_t next = rest.find_first_not_of(' ', *at);
    if (next == std::string::npos) break;
    out += rest.substr(0, *at) + "\n";
    rest = std::string(indent, ' ') + rest.substr(next);
  }
  return out + rest;
}

std::mutex log_mutex;
LogSink custom_sink;
std::map<int, LogListener> listeners;
int next_listener = 0;
std::string live_text;
LogLevel least_level = LogLevel::kInfo;
bool facts_to_stderr = false;

void print(std::FILE* stream, const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

void clear_live_line() {
  if (!live_text.empty()) print(stdout, "\r\x1b[K");
}

}  // namespace

int terminal_columns(int descriptor) {
  winsize size = {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int number = columns == nullptr ? 0 : std::atoi(columns);
  return number > 0 && number < kMostColumns ? number : kUsualColumns;
}

bool is_live_terminal(int descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

std::string wrapped(const std::string& text, int columns) {
  constexpr int kLeast = 20;  // narrower, lines would hold a word each
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out +=
        wrapped_line(std::string_view(text).substr(begin, end - begin), std::max(columns, kLeast));
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string clipped(const std::string& line, int columns) {
  return line.substr(0, bytes_of(line, std::max(columns, 0)));
}

bool log_is_terminal() {
  return is_live_terminal(STDOUT_FILENO);
}

void log_line(LogLevel level, const std::string& tag, const std::string& whole) {
  const std::lock_guard lock(log_mutex);
  if (level < least_level) return;
  const std::string text = public_text(whole);
  const char* prefix = level == LogLevel::kError     ? "error: "
                       : level == LogLevel::kWarning ? "warning: "
                                                     : "";
  std::string line = (tag.empty() ? "" : "[" + tag + "] ") + prefix + printable(text);
  for (const auto& [number, listener] : listeners) listener(level, line);
  if (custom_sink) return custom_sink(level, tag, text);
  clear_live_line();
  std::FILE* stream = level == LogLevel::kInfo && !facts_to_stderr ? stdout : stderr;
  // The last column stays free: a full line would wrap on some terminals. A file has whole lines.
  const int descriptor = ::fileno(stream);
  if (::isatty(descriptor) == 1) line = wrapped(line, terminal_columns(descriptor) - 1);
  print(stream, line + "\n");
  if (!live_text.empty()) print(stdout, live_text);
}

void log_live(const std::string& text) {
  if (!log_is_terminal()) return;
  const std::lock_guard lock(log_mutex);
  clear_live_line();
  live_text = clipped(text, terminal_columns(STDOUT_FILENO) - 1);
  if (!live_text.empty()) print(stdout, live_text);
}

void log_to_stderr() {
  const std::lock_guard lock(log_mutex);
  facts_to_stderr = true;
}

void check_stdout() {
  std::cout.flush();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) return;
  throw ResourceError("the output cannot be written (stdout): {}",
                      errno == 0 ? "not all of it was written" : errno_text(errno));
}

void set_least_log_level(LogLevel least) {
  const std::lock_guard lock(log_mutex);
  least_level = least;
}

int add_log_listener(LogListener listener) {
  const std::lock_guard lock(log_mutex);
  listeners.emplace(next_listener, std::move(listener));
  return next_listener++;
}

void remove_log_listener(int listener) {
  const std::lock_guard lock(log_mutex);
  listeners.erase(listener);
}

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(log_mutex);
  custom_sink = std::move(sink);
}

}  // namespace dalle2
