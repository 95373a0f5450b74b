// SPDX-License-Identifier: MIT
// Lines for people: `[train] text` on stdout, warnings and errors on stderr, laid out for a terminal.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

namespace dalle2 {

enum class LogLevel { kInfo, kWarning, kError };

/// Writes one line, tagged `[tag]` (none if empty); safe from any thread. A live progress line is
/// moved out of the way. Control characters are escaped (printable()): further lines begin with two
/// spaces. On a terminal long lines are broken between words; in a file each stays whole.
void log_line(LogLevel level, const std::string& tag, const std::string& text);

template <class... Args>
void log_info(const std::string& tag, fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kInfo, tag, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(const std::string& tag, fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kWarning, tag, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(const std::string& tag, fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kError, tag, fmt::format(text, std::forward<Args>(args)...));
}

/// Lines of a lower level are left out from now on: of several processes that say the same, one
/// says it.
void set_least_log_level(LogLevel least);

/// From now on facts go to stderr too: stdout has a command's result.
void log_to_stderr();

/// Shows `text` as the one live line of a terminal, cut to its width; empty clears it. Does nothing
/// if stdout is not a terminal.
void log_live(const std::string& text);

/// True if stdout is a terminal that can show a live line.
bool log_is_terminal();

/// Writes a line on stdout as it is: the result of a command.
template <class... Args>
void print_line(fmt::format_string<Args...> text, Args&&... args) {
  std::puts(fmt::format(text, std::forward<Args>(args)...).c_str());
}

/// Makes sure that everything printed on stdout was written: otherwise its reader has only a part
/// and must not take it for the whole. @throws ResourceError (full disk, closed pipe)
void check_stdout();

/// Hears each line as a file would have it, beside where it goes; it must not log.
using LogListener = std::function<void(LogLevel, const std::string& line)>;
/// @return what ends it
int add_log_listener(LogListener listener);
void remove_log_listener(int listener);

/// Replaces where lines go (tests catch warnings with it); an empty function restores the default.
using LogSink = std::function<void(LogLevel, const std::string& tag, const std::string& text)>;
void set_log_sink(LogSink sink);

/// Columns of the terminal behind a file descriptor, else those of COLUMNS, else 80.
int terminal_columns(int descriptor);

/// Whether the descriptor is a terminal on which a line can be drawn over: TERM is not "dumb".
bool is_live_terminal(int descriptor);

/// The text with each line of more than `columns` broken at blanks, at a gap of two if there is a
/// late one: such gaps are between values. Continuation lines are indented by two
/// more columns. A word without a blank stays whole, so that a path can be copied. Characters are counted,
/// not bytes.
std::string wrapped(const std::string& text, int columns);

/// The first `columns` characters of a line.
std::string clipped(const std::string& line, int columns);

}  // namespace dalle2
