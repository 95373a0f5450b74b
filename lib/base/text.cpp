// SPDX-License-Identifier: MIT
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace dalle2 {
std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return result;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string indented_list(const std::vector<std::string>& lines) {
  constexpr size_t kMost = 15;  // three lists of them fit on a screen
  std::string text;
  for (size_t i = 0; i < lines.size() && i < kMost; ++i) text += "\n    " + lines[i];
  if (lines.size() > kMost) text += fmt::format("\n    ... and {} more", lines.size() - kMost);
  return text;
}

int edit_distance(const std::string& a, const std::string& b) {
  const size_t rows = a.size() + 1;
  const size_t columns = b.size() + 1;
  std::vector<int> table(rows * columns);
  const auto at = [&](size_t i, size_t j) -> int& { return table[i * columns + j]; };
  for (size_t i = 0; i < rows; ++i) at(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j < columns; ++j) at(0, j) = static_cast<int>(j);
  for (size_t i = 1; i < rows; ++i) {
    for (size_t j = 1; j < columns; ++j) {
      const int replace = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> nearest_word(const std::string& word,
                                        const std::vector<std::string>& candidates) {
  // A third of the letters, at least one and at most three, may be wrong, but never all of them.
  const int size = static_cast<int>(word.size());
  const int limit = std::min(std::clamp(size / 3, 1, 3), size - 1);
  std::optional<std::string> best;
  int best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    // A difference in length is the least number of edits; it saves the table for long words.
    if (std::abs(static_cast<int>(candidate.size()) - size) >= best_distance) continue;
    const int distance = edit_distance(lower_case(word), lower_case(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::optional<int64_t> number_of_digits(const std::string& text) {
  constexpr size_t kMostDigits = 18;  // fit into 63 bits
  if (text.empty() || text.size() > kMostDigits ||
      text.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(text);
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  const int64_t first = number < 0 ? 1 : 0;
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string counted(int64_t count, const std::string& one, const std::string& many) {
  const std::string plural = many.empty() ? one + "s" : many;
  return with_commas(count) + " " + (count == 1 ? one : plural);
}

std::string short_number(double value, int digits) {
  constexpr double kExponentBelow = 1e-2;  // below it zeros would take the place of digits
  constexpr double kExponentFrom = 1e9;
  const double size = std::abs(value);
  if (!std::isfinite(value) || value == 0) return fmt::format("{}", value);
  if (size < kExponentBelow || size >= kExponentFrom) {
    const std::string padded = fmt::format("{:.{}e}", value, digits - 1);  // "1.980e-03"
    const size_t e = padded.find('e');
    std::string mantissa = padded.substr(0, e);
    if (digits > 1) mantissa.erase(mantissa.find_last_not_of(".0") + 1);
    return fmt::format("{}e{}", mantissa, std::stoi(padded.substr(e + 1)));
  }
  if (size >= std::pow(10, digits - 1)) return with_commas(std::llround(value));
  return fmt::format("{:.{}g}", value, digits);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::string human_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kRoundsUp = 1023.95;  // would be shown as 1024.0 of the unit
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= kRoundsUp && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_duration(double seconds) {
  constexpr double kLongest = 1e12;  // beyond it, and for NaN, there is nothing to say
  if (!(seconds <= kLongest)) return "-:--";
  const int64_t total = seconds > 0 ? static_cast<int64_t>(seconds) : 0;
  if (total >= 3600) {
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  }
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

}  // namespace dalle2
