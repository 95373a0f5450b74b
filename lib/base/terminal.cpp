// SPDX-License-Identifier: MIT
#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace dalle2 {
namespace {

constexpr int kUsualColumns = 80;
constexpr int kMostColumns = 10'000;

/// Whether a byte begins a character of UTF-8.
bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

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

}  // namespace dalle2
