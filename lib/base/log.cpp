// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "base/terminal.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

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
