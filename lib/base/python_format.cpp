// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <cctype>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"

namespace dalle2 {
namespace {

constexpr size_t kMostBytes = 1 << 16;  // no path is longer

/// Which entries of a list may be picked: those that are there now, or any.
enum class Indices { kOfNow, kAny };

/// One {name[index]!conversion:spec}.
struct Field {
  std::string name;
  std::string conversion;
  std::string spec;
};

/// Splits the inside of a field. Brackets of an index may hold any letter, as in Python.
Field parse_field(const std::string& inside) {
  Field field;
  size_t at = 0;
  bool in_index = false;
  for (; at < inside.size(); ++at) {
    const char letter = inside[at];
    if (letter == '[') in_index = true;
    if (letter == ']') in_index = false;
    if (!in_index && (letter == '!' || letter == ':')) break;
  }
  field.name = inside.substr(0, at);
  if (at < inside.size() && inside[at] == '!') {
    const size_t colon = inside.find(':', at);
    field.conversion = inside.substr(at + 1, colon == std::string::npos ? colon : colon - at - 1);
    if (field.conversion.size() != 1) {
      throw ConfigError("'{{{}}}': one of !s, !r, !a is expected after the name", inside);
    }
    at = colon == std::string::npos ? inside.size() : colon;
  }
  if (at < inside.size()) field.spec = inside.substr(at + 1);
  return field;
}

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
      int depth = 1;
      size_t end = i + 1;
      for (; end < text.size() && depth > 0; ++end) {
        if (text[end] == '{') ++depth;
        if (text[end] == '}') --depth;
      }
      if (depth > 0) {
        throw ConfigError("a '{{' without its '}}' in '{}': write '{{{{' for the brace itself",
                          text);
      }
      fields.push_back(text.substr(i + 1, end - i - 2));
      literals.emplace_back();
      i = end - 1;
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
  constexpr size_t kMost = 60;
  const std::string shown = public_text(name);
  throw ConfigError("unknown placeholder {{{}}}{}: known are {}",
                    shown.size() <= kMost ? shown : shown.substr(0, kMost - 3) + "...",
                    near ? " (did you mean {" + *near + "}?)" : "",
                    listed);
}

/// The value named by "validation_losses" or "validation_losses[0]".
FormatValue look_up(const std::string& path, const FormatFields& fields, Indices indices) {
  const size_t name_end = path.find_first_of("[.");
  const std::string name = path.substr(0, name_end);
  const FormatValue& value = find(name, fields);
  if (name_end == std::string::npos) return value;
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (path[name_end] == '.' || list == nullptr || path.back() != ']') {
    throw ConfigError(
        "'{{{}}}': only an entry of a list can be picked, as in {{validation_losses[0]}}", path);
  }
  const char* first = path.data() + name_end + 1;
  const char* last = path.data() + path.size() - 1;
  size_t index = 0;
  const auto parsed = std::from_chars(first, last, index);
  if (parsed.ec != std::errc{} || parsed.ptr != last) {
    throw ConfigError("'{{{}}}': the index of a list is a whole number from 0", path);
  }
  if (indices == Indices::kAny) return list->empty() ? 0.0 : list->front();
  if (index >= list->size()) {
    throw ConfigError("'{{{}}}': the list has {} entries now", path, list->size());
  }
  return (*list)[index];
}

/// Python's repr of text without control characters.
std::string quoted(const std::string& text) {
  const bool double_quotes =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string result(1, quote);
  for (const char letter : text) {
    if (letter == quote || letter == '\\') result += '\\';
    result += letter;
  }
  return result + quote;
}

FormatValue convert(const FormatValue& value, const std::string& conversion) {
  if (conversion.empty()) return value;
  if (conversion == "s") return python_text(value);
  if (conversion != "r" && conversion != "a") {
    throw ConfigError("unknown conversion !{}: one of !s, !r, !a is expected", conversion);
  }
  const auto* text = std::get_if<std::string>(&value);
  return text ? quoted(*text) : python_text(value);
}

std::string format_at_depth(const std::string& text,
                            const FormatFields& fields,
                            Indices indices,
                            int depth) {
  if (depth > 2) throw ConfigError("'{}': fields are nested too deeply", text);
  std::vector<std::string> literals;
  std::vector<std::string> insides;
  split(text, literals, insides);
  std::string result = literals[0];
  for (size_t i = 0; i < insides.size(); ++i) {
    const Field field = parse_field(insides[i]);
    const FormatValue value = convert(look_up(field.name, fields, indices), field.conversion);
    const bool nested = field.spec.find_first_of("{}") != std::string::npos;
    result += python_format_value(
        value, nested ? format_at_depth(field.spec, fields, indices, depth + 1) : field.spec);
    result += literals[i + 1];
    if (result.size() > kMostBytes) {
      throw ConfigError("its placeholders would give a text of more than {} bytes", kMostBytes);
    }
  }
  return result;
}

}  // namespace

std::string python_format(const std::string& text, const FormatFields& fields) {
  return format_at_depth(text, fields, Indices::kOfNow, 1);
}

std::string python_format_example(const std::string& text, const FormatFields& examples) {
  return format_at_depth(text, examples, Indices::kAny, 1);
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

}  // namespace dalle2
