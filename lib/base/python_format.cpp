// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"

namespace dalle2 {
namespace {

/// The text between braces, short and without secrets.
std::string shown_field(const std::string& inside) {
  constexpr size_t kMost = 60;
  const std::string shown = public_text(inside);
  return shown.size() <= kMost ? shown : shown.substr(0, kMost - 3) + "...";
}

[[noreturn]] void refuse(const std::string& inside) {
  throw ConfigError(
      "'{{{}}}' is no form of a placeholder; there are {{name}}, {{list[0]}}, {{name:06d}} of a "
      "whole number, {{name:.3f}} and {{name:.2e}} of a number, with any width and precision up to "
      "999",
      shown_field(inside));
}

/// [0][width][.precision]type; -1 is an absent precision.
struct FormatSpec {
  bool zeros = false;
  int width = 0, precision = -1;
  char type = '\0';
};

FormatSpec parse_spec(std::string_view text, const std::string& inside) {
  FormatSpec spec;
  const auto take = [&](char letter) {
    if (!text.starts_with(letter)) return false;
    text.remove_prefix(1);
    return true;
  };
  const auto take_number = [&](int absent) {
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits > 3) refuse(inside);
    int number = absent;
    std::from_chars(text.data(), text.data() + digits, number);
    text.remove_prefix(digits);
    return number;
  };
  spec.zeros = take('0');
  spec.width = take_number(0);
  if (take('.') && (spec.precision = take_number(-1)) < 0) refuse(inside);
  if (text != "d" && text != "f" && text != "e") refuse(inside);
  spec.type = text[0];
  return spec;
}

/// A number in the digits of `spec`, without its width.
std::string digits_of(double value, const FormatSpec& spec) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  return spec.type == 'f' ? fmt::format("{:.{}f}", value, precision)
                          : fmt::format("{:.{}e}", value, precision);
}

std::string format_number(const FormatValue& value,
                          const FormatSpec& spec,
                          const std::string& inside) {
  const auto* whole = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  const bool fits =
      spec.type == 'd' ? whole != nullptr && spec.precision < 0 : whole != nullptr || real;
  if (!fits) refuse(inside);
  std::string text = spec.type == 'd'
                         ? std::to_string(*whole)
                         : digits_of(whole ? static_cast<double>(*whole) : *real, spec);
  const auto width = static_cast<size_t>(spec.width);
  const size_t missing = width > text.size() ? width - text.size() : 0;
  const bool behind_sign = spec.zeros && text.starts_with('-');
  return text.insert(behind_sign ? 1 : 0, missing, spec.zeros ? '0' : ' ');
}

/// Which entries of a list may be picked: those that are there now, or any.
enum class Indices { kOfNow, kAny };

/// Cuts `text` at its fields: literals[i], field i, literals[i + 1].
void split(const std::string& text,
           std::vector<std::string>& literals,
           std::vector<std::string>& fields) {
  literals.assign(1, "");
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter != '{' && letter != '}') {
      literals.back() += letter;
    } else if (i + 1 < text.size() && text[i + 1] == letter) {
      literals.back() += letter;
      ++i;
    } else if (letter == '}') {
      throw ConfigError("a single '}}' in '{}': write '}}}}' for the brace itself", text);
    } else {
      const size_t end = text.find('}', i);
      if (end == std::string::npos) {
        throw ConfigError("a '{{' without its '}}' in '{}': write '{{{{' for the brace itself",
                          text);
      }
      fields.push_back(text.substr(i + 1, end - i - 1));
      if (fields.back().find('{') != std::string::npos) refuse(fields.back());
      literals.emplace_back();
      i = end;
    }
  }
}

const FormatValue& find(const std::string& name, const FormatFields& fields) {
  std::vector<std::string> names;
  std::string listed;
  for (const auto& [known, value] : fields) {
    if (known == name) return value;
    names.push_back(known);
    listed += (listed.empty() ? "{" : ", {") + known + "}";
  }
  const std::optional<std::string> near = nearest_word(name, names);
  throw ConfigError("unknown placeholder {{{}}}{}: known are {}",
                    shown_field(name),
                    near ? " (did you mean {" + *near + "}?)" : "",
                    listed);
}

/// Entry `index` of a list. @param index "[0]"
FormatValue entry(const FormatValue& value,
                  std::string_view index,
                  const std::string& inside,
                  Indices indices) {
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (list == nullptr || !index.starts_with('[') || !index.ends_with(']')) refuse(inside);
  const char* last = index.data() + index.size() - 1;
  size_t at = 0;
  const auto parsed = std::from_chars(index.data() + 1, last, at);
  if (parsed.ec != std::errc{} || parsed.ptr != last) refuse(inside);
  if (indices == Indices::kAny) return list->empty() ? 0.0 : list->front();
  if (at < list->size()) return (*list)[at];
  throw ConfigError("'{{{}}}': the list has {} entries now", inside, list->size());
}

std::string python_text(const FormatValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&value)) return python_repr(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  std::string list = "[";
  for (const double each : std::get<std::vector<double>>(value)) {
    list += (list.size() > 1 ? ", " : "") + python_repr(each);
  }
  return list + "]";
}

/// @param inside name, name[index] or one of them with :spec
std::string format_field(const std::string& inside, const FormatFields& fields, Indices indices) {
  const size_t colon = std::min(inside.find(':'), inside.size());
  const std::string_view path = std::string_view(inside).substr(0, colon);
  const size_t name_end = std::min(path.find_first_of("[.!"), path.size());
  FormatValue value = find(inside.substr(0, name_end), fields);
  if (name_end < path.size()) value = entry(value, path.substr(name_end), inside, indices);
  if (colon == inside.size()) return python_text(value);
  const FormatSpec spec = parse_spec(std::string_view(inside).substr(colon + 1), inside);
  return format_number(value, spec, inside);
}

std::string filled(const std::string& text, const FormatFields& fields, Indices indices) {
  std::vector<std::string> literals;
  std::vector<std::string> insides;
  split(text, literals, insides);
  std::string result = literals[0];
  for (size_t i = 0; i < insides.size(); ++i)
    result += format_field(insides[i], fields, indices) + literals[i + 1];
  return result;
}

}  // namespace

std::string python_format(const std::string& text, const FormatFields& fields) {
  return filled(text, fields, Indices::kOfNow);
}

std::string python_format_example(const std::string& text, const FormatFields& examples) {
  return filled(text, examples, Indices::kAny);
}

std::optional<std::string> python_format_fault(const std::string& text,
                                               const FormatFields& examples) {
  try {
    python_format_example(text, examples);
    return std::nullopt;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::vector<std::string> python_format_literals(const std::string& text) {
  std::vector<std::string> literals;
  std::vector<std::string> insides;
  split(text, literals, insides);
  return literals;
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace dalle2
