// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <algorithm>
#include <cmath>
#include <regex>

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

std::string python_text(const FormatValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&value)) return python_repr(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  std::string list = "[";
  for (const double each : std::get<std::vector<double>>(value))
    list += (list.size() > 1 ? ", " : "") + python_repr(each);
  return list + "]";
}

/// @param inside name, name[index] or one of them with :spec
std::string format_field(const std::string& inside, const FormatFields& fields, Indices indices) {
  static const std::regex form(R"([^:.![\]]*(\[(\d{1,9})\])?(:0?\d{0,3}(\.\d{1,3})?([dfe]))?)");
  FormatValue value = find(inside.substr(0, inside.find_first_of("[:.!")), fields);
  std::smatch part;
  if (!std::regex_match(inside, part, form)) refuse(inside);
  if (part[1].matched) {
    const auto* list = std::get_if<std::vector<double>>(&value);
    if (list == nullptr) refuse(inside);
    const size_t at = std::stoul(part[2]);
    const bool is_now = indices == Indices::kOfNow;
    if (is_now && at >= list->size())
      throw ConfigError("'{{{}}}': the list has {} entries now", inside, list->size());
    value = is_now ? (*list)[at] : list->empty() ? 0.0 : list->front();
  }
  if (!part[3].matched) return python_text(value);
  const auto* whole = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  const bool is_whole = part[5] == "d";
  if (is_whole ? whole == nullptr || part[4].matched : whole == nullptr && real == nullptr)
    refuse(inside);
  std::string spec = fmt::format("{{{}}}", part[3].str());
  if (spec[2] != '0') spec.insert(2, ">");  // what is not finite too
  if (is_whole) return fmt::format(fmt::runtime(spec), *whole);
  const double number = whole != nullptr ? static_cast<double>(*whole) : *real;
  std::string shown =
      fmt::format(fmt::runtime(spec), std::isnan(number) ? std::abs(number) : number);
  if (spec[2] != '0' || std::isfinite(number)) return shown;
  // Python fills with zeros here too, behind the sign.
  const size_t blanks = shown.find_first_not_of(' ');
  std::fill_n(shown.begin(), blanks, '0');
  if (shown[blanks] == '-') std::swap(shown[0], shown[blanks]);
  return shown;
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
