// SPDX-License-Identifier: MIT
#include "base/format_spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr int kMaxNumber = 4096;  // of columns or decimals: a file name holds 255

bool is_align(char letter) {
  return std::string_view("<>=^").find(letter) != std::string_view::npos;
}

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

/// Bytes of the UTF-8 character that starts with `lead`.
size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

size_t count_characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xC0) != 0x80;
  }));
}

std::string repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

/// A number in its parts: sign or prefix, the digits that are grouped, and what follows them.
struct NumberParts {
  std::string sign, digits, rest;
};

/// Puts `separator` between groups of digits, with zeros in front until `min_width` columns are
/// filled.
std::string group_digits(std::string digits, char separator, size_t group, int min_width) {
  if (digits.empty()) separator = '\0';  // inf and nan: Python fills them without separators
  const auto grouped = [&] {
    std::string result;
    for (size_t i = 0; i < digits.size(); ++i) {
      if (separator != '\0' && i > 0 && (digits.size() - i) % group == 0) result += separator;
      result += digits[i];
    }
    return result;
  };
  std::string result = grouped();
  while (static_cast<int>(result.size()) < min_width) {
    digits.insert(0, "0");
    result = grouped();
  }
  return result;
}

std::string pad(const std::string& head,
                const std::string& body,
                const FormatSpec& spec,
                char align) {
  const int size = static_cast<int>(count_characters(head) + count_characters(body));
  const int missing = std::max(0, spec.width - size);
  switch (align) {
    case '<':
      return head + body + repeat(spec.fill, missing);
    case '^':
      return repeat(spec.fill, missing / 2) + head + body +
             repeat(spec.fill, missing - missing / 2);
    case '=':
      return head + repeat(spec.fill, missing) + body;
    default:
      return repeat(spec.fill, missing) + head + body;
  }
}

std::string lay_out(const NumberParts& parts, const FormatSpec& spec, size_t group) {
  const char align = spec.align == '\0' ? '>' : spec.align;
  const bool zeros = spec.fill == "0" && align == '=';
  const int digits_width =
      zeros ? spec.width - static_cast<int>(parts.sign.size() + parts.rest.size()) : 0;
  return pad(parts.sign,
             group_digits(parts.digits, spec.grouping, group, digits_width) + parts.rest,
             spec,
             align);
}

std::string sign_text(bool negative, char wanted) {
  if (negative) return "-";
  return wanted == '+' || wanted == ' ' ? std::string(1, wanted) : "";
}

void refuse(bool wrong, const char* what) {
  if (wrong) throw ConfigError("{}", what);
}

int parse_number(const std::string& spec, size_t& at) {
  int number = 0;
  while (at < spec.size() && is_digit(spec[at])) {
    number = number * 10 + (spec[at++] - '0');
    if (number > kMaxNumber)
      throw ConfigError("the number in the format spec '{}' is too large", spec);
  }
  return number;
}

std::string digits_in_base(uint64_t magnitude, unsigned base) {
  std::string digits;
  do {
    digits.insert(digits.begin(), "0123456789abcdef"[magnitude % base]);
    magnitude /= base;
  } while (magnitude != 0);
  return digits;
}

std::string upper(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

/// Drops trailing zeros of a fraction, and the point if nothing follows it.
std::string strip_zeros(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

/// C's %g of a magnitude, but with Python's threshold where a point is added (`add_point_zero`).
std::string general(double magnitude, int precision, bool alternate, bool add_point_zero) {
  const int digits = std::max(precision, 1);
  const std::string scientific = fmt::format("{:.{}e}", magnitude, digits - 1);
  const size_t e = scientific.find('e');
  const int point = magnitude == 0 ? 1 : std::stoi(scientific.substr(e + 1)) + 1;
  if (point <= -4 || point > digits - (add_point_zero ? 1 : 0)) {
    std::string mantissa = scientific.substr(0, e);
    if (alternate && mantissa.find('.') == std::string::npos) mantissa += '.';
    return (alternate ? mantissa : strip_zeros(mantissa)) + scientific.substr(e);
  }
  std::string fixed = fmt::format("{:.{}f}", magnitude, digits - point);
  if (!alternate) fixed = strip_zeros(fixed);
  if (fixed.find('.') == std::string::npos) {
    if (add_point_zero) return fixed + ".0";
    if (alternate) return fixed + ".";
  }
  return fixed;
}

/// The digits of a finite or infinite magnitude, or "nan".
std::string real_text(double magnitude, const FormatSpec& spec) {
  const char type = static_cast<char>(std::tolower(static_cast<unsigned char>(spec.type)));
  if (std::isnan(magnitude)) return spec.type == '%' ? "nan%" : "nan";
  if (std::isinf(magnitude)) return spec.type == '%' ? "inf%" : "inf";
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const bool bare_point = spec.alternate && precision == 0;
  switch (type) {
    case 'e': {
      std::string text = fmt::format("{:.{}e}", magnitude, precision);
      if (bare_point) text.insert(text.find('e'), ".");
      return text;
    }
    case 'f':
      return fmt::format("{:.{}f}", magnitude, precision) + (bare_point ? "." : "");
    case '%':
      return fmt::format("{:.{}f}", magnitude * 100, precision) + (bare_point ? ".%" : "%");
    case 'g':
    case 'n':
      return general(magnitude, precision, spec.alternate, /*add_point_zero=*/false);
    default:
      break;
  }
  if (spec.precision >= 0) {
    return general(magnitude, precision, spec.alternate, /*add_point_zero=*/true);
  }
  std::string text = python_repr(magnitude);
  if (spec.alternate && text.find('.') == std::string::npos) text.insert(text.find('e'), ".");
  return text;
}

}  // namespace

FormatSpec parse_format_spec(const std::string& spec, bool numeric) {
  FormatSpec result;
  size_t at = 0;
  const auto peek = [&](size_t ahead) {
    return at + ahead < spec.size() ? spec[at + ahead] : '\0';
  };
  const size_t fill_bytes = spec.empty() ? 1 : character_bytes(spec[0]);
  if (spec.size() > fill_bytes && is_align(spec[fill_bytes])) {
    result.fill = spec.substr(0, fill_bytes);
    result.align = spec[fill_bytes];
    at = fill_bytes + 1;
  } else if (is_align(peek(0))) {
    result.align = spec[at++];
  }
  const bool fill_given = at > 1;
  if (peek(0) == '+' || peek(0) == '-' || peek(0) == ' ') result.sign = spec[at++];
  if (peek(0) == 'z') result.no_negative_zero = ++at > 0;
  if (peek(0) == '#') result.alternate = ++at > 0;
  if (!fill_given && peek(0) == '0') {
    result.fill = "0";
    if (result.align == '\0' && numeric) result.align = '=';
    ++at;
  }
  if (is_digit(peek(0))) result.width = parse_number(spec, at);
  if (peek(0) == ',' || peek(0) == '_') result.grouping = spec[at++];
  refuse(result.grouping != '\0' && (peek(0) == ',' || peek(0) == '_'),
         "Cannot specify both ',' and '_', or either twice");
  if (peek(0) == '.') {
    ++at;
    if (!is_digit(peek(0))) throw ConfigError("Format specifier missing precision: '{}'", spec);
    result.precision = parse_number(spec, at);
  }
  if (at + 1 == spec.size()) result.type = spec[at++];
  if (at != spec.size()) throw ConfigError("Invalid format specifier '{}'", spec);
  return result;
}

std::string format_text(const std::string& value, const FormatSpec& spec) {
  if (spec.type != '\0' && spec.type != 's') {
    throw ConfigError("Unknown format code '{}' for text", spec.type);
  }
  refuse(spec.sign != '\0', "Sign not allowed in the format spec of text");
  refuse(spec.no_negative_zero, "'z' not allowed in the format spec of text");
  refuse(spec.alternate, "'#' not allowed in the format spec of text");
  refuse(spec.align == '=', "'=' alignment not allowed in the format spec of text");
  refuse(spec.grouping != '\0', "Cannot group the digits of text");
  std::string shown = value;
  if (spec.precision >= 0) {
    size_t bytes = 0;
    for (int i = 0; i < spec.precision && bytes < shown.size(); ++i)
      bytes += character_bytes(shown[bytes]);
    shown.resize(std::min(bytes, shown.size()));
  }
  return pad("", shown, spec, spec.align == '\0' ? '<' : spec.align);
}

std::string format_integer(long long value, const FormatSpec& spec) {
  if (spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos) {
    return format_real(static_cast<double>(value), spec);
  }
  if (spec.type != '\0' && std::string_view("bcdnoxX").find(spec.type) == std::string_view::npos) {
    throw ConfigError("Unknown format code '{}' for a whole number", spec.type);
  }
  refuse(spec.precision >= 0, "Precision not allowed for a whole number");
  refuse(spec.no_negative_zero, "'z' not allowed for a whole number");
  const char type = spec.type == '\0' ? 'd' : spec.type;
  const bool decimal = type == 'd';
  const bool power_of_two = type == 'b' || type == 'o' || type == 'x' || type == 'X';
  refuse(spec.grouping == ',' && !decimal, "Cannot specify ',' with this type");
  refuse(spec.grouping == '_' && !decimal && !power_of_two, "Cannot specify '_' with this type");
  if (type == 'c') {
    refuse(spec.sign != '\0', "Sign not allowed with type 'c'");
    refuse(spec.alternate, "'#' not allowed with type 'c'");
    refuse(value < 0x20 || value > 0x7E, "type 'c' takes the code of a printable ASCII letter");
    return lay_out({"", "", std::string(1, static_cast<char>(value))}, spec, 3);
  }
  const unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
  const uint64_t magnitude =
      value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  NumberParts parts{sign_text(value < 0, spec.sign), digits_in_base(magnitude, base), ""};
  if (spec.alternate && power_of_two) parts.sign += std::string("0") + type;
  if (type == 'X') parts.digits = upper(parts.digits);
  return lay_out(parts, spec, power_of_two ? 4 : 3);
}

std::string format_real(double value, const FormatSpec& spec) {
  if (spec.type != '\0' && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos) {
    throw ConfigError("Unknown format code '{}' for a number", spec.type);
  }
  refuse(spec.grouping != '\0' && spec.type == 'n', "Cannot specify a grouping with 'n'");
  std::string text = real_text(std::fabs(value), spec);
  const bool upper_case = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (upper_case) text = upper(text);
  bool negative = std::signbit(value) && !std::isnan(value);
  const bool shows_zero =
      text.substr(0, text.find_first_of("eE")).find_first_of("123456789in") == std::string::npos;
  if (spec.no_negative_zero && shows_zero && std::isfinite(value)) negative = false;
  const size_t whole = text.find_first_not_of("0123456789");
  return lay_out({sign_text(negative, spec.sign),
                  text.substr(0, whole),
                  whole == std::string::npos ? "" : text.substr(whole)},
                 spec,
                 3);
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace dalle2
