// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"

namespace dalle2 {
namespace {

constexpr int kMaxNumber = 4096;  // of columns or decimals: a file name holds 255

/// [[fill]align][sign][z][#][0][width][grouping][.precision][type]; '\0' and -1 for what is absent.
struct FormatSpec {
  std::string fill = " ";  ///< one UTF-8 character
  char align = '\0', sign = '\0', grouping = '\0', type = '\0';
  bool no_negative_zero = false, alternate = false;
  int width = -1, precision = -1;
};

/// Bytes of the UTF-8 character that starts with `lead`.
size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

bool contains(std::string_view letters, char letter) {
  return letters.find(letter) != std::string_view::npos;
}

void refuse(bool wrong, const char* what) {
  if (wrong) throw ConfigError("{}", what);
}

void check_type(const FormatSpec& spec, std::string_view known, const char* what) {
  if (spec.type != '\0' && !contains(known, spec.type)) {
    throw ConfigError("Unknown format code '{}' for {}", spec.type, what);
  }
}

/// @param numeric a leading 0 of the width pads numbers after their sign, and text at its right
FormatSpec parse_spec(const std::string& text, bool numeric) {
  FormatSpec spec;
  size_t at = 0;
  const auto take = [&](std::string_view letters) {
    return at < text.size() && contains(letters, text[at]) ? text[at++] : '\0';
  };
  const auto take_number = [&] {
    int number = -1;
    while (const char digit = take("0123456789")) {
      number = std::max(number, 0) * 10 + (digit - '0');
      if (number > kMaxNumber)
        throw ConfigError("the number in the format spec '{}' is too large", text);
    }
    return number;
  };
  const size_t fill_bytes = text.empty() ? 0 : character_bytes(text[0]);
  const bool has_fill = text.size() > fill_bytes && contains("<>=^", text[fill_bytes]);
  if (has_fill) {
    spec.fill = text.substr(0, fill_bytes);
    at = fill_bytes;
  }
  spec.align = take("<>=^");
  spec.sign = take("+- ");
  spec.no_negative_zero = take("z") != '\0';
  spec.alternate = take("#") != '\0';
  if (!has_fill && take("0") != '\0') {
    spec.fill = "0";
    if (spec.align == '\0' && numeric) spec.align = '=';
  }
  spec.width = take_number();
  spec.grouping = take(",_");
  refuse(spec.grouping != '\0' && take(",_") != '\0',
         "Cannot specify both ',' and '_', or either twice");
  if (take(".") != '\0') {
    spec.precision = take_number();
    if (spec.precision < 0) throw ConfigError("Format specifier missing precision: '{}'", text);
  }
  if (at + 1 == text.size()) spec.type = text[at++];
  if (at != text.size()) throw ConfigError("Invalid format specifier '{}'", text);
  return spec;
}

/// @param head stays at the left of what '=' fills in
std::string pad(const std::string& head,
                const std::string& body,
                const FormatSpec& spec,
                char usual_align) {
  const char align = spec.align == '\0' ? usual_align : spec.align;
  const std::string whole = head + body;
  const auto size = std::count_if(whole.begin(), whole.end(), [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xC0) != 0x80;
  });
  const int missing = std::max(0, spec.width - static_cast<int>(size));
  const int left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string text = align == '=' ? head : "";
  for (int i = 0; i < left; ++i) text += spec.fill;
  text += align == '=' ? body : whole;
  for (int i = left; i < missing; ++i) text += spec.fill;
  return text;
}

/// A number: sign or prefix, digits that are grouped and get zeros in front, and what follows them.
std::string lay_out(const std::string& sign,
                    const std::string& digits,
                    const std::string& rest,
                    const FormatSpec& spec,
                    size_t group = 3) {
  const bool zeros = spec.fill == "0" && spec.align == '=';
  const int least = zeros ? spec.width - static_cast<int>(sign.size() + rest.size()) : 0;
  // Python fills inf and nan without separators.
  const char separator = digits.empty() ? '\0' : spec.grouping;
  std::string grouped;  // from the last digit on
  auto digit = digits.rbegin();
  for (size_t i = 0; digit != digits.rend() || static_cast<int>(grouped.size()) < least; ++i) {
    if (separator != '\0' && i > 0 && i % group == 0) grouped += separator;
    grouped += digit != digits.rend() ? *digit++ : '0';
  }
  std::reverse(grouped.begin(), grouped.end());
  return pad(sign, grouped + rest, spec, '>');
}

std::string sign_text(bool negative, char wanted) {
  if (negative) return "-";
  return wanted == '+' || wanted == ' ' ? std::string(1, wanted) : "";
}

/// As C's %.6g and the like.
std::string decimal(double magnitude, char type, int precision, bool alternate) {
  std::string text =
      fmt::vformat(fmt::format("{{:{}.{}{}}}", alternate ? "#" : "", precision, type),
                   fmt::make_format_args(magnitude));
  // Where the digits end at the point, fmt adds a zero.
  const size_t zero = text.find(".0") + 1;
  const bool ends_there =
      zero > 0 && (zero + 1 == text.size() || text[zero + 1] == 'e' || text[zero + 1] == 'E');
  const bool is_general = type == 'g' || type == 'G';
  if (is_general && ends_there && zero > static_cast<size_t>(precision)) text.erase(zero, 1);
  return text;
}

/// %g, but a point and a zero follow a whole number, and an exponent one whose digits are all used.
std::string with_point_or_exponent(double magnitude, int precision, bool alternate) {
  const std::string text = decimal(magnitude, 'g', precision, alternate);
  const size_t point = std::min(text.find('.'), text.size());
  const bool is_whole = point + 1 >= text.size() && text.find_first_of("en") == std::string::npos;
  if (!is_whole) return text;
  if (static_cast<int>(point) < precision) return text + ".0";
  std::string mantissa = decimal(magnitude, 'e', precision - 1, alternate);
  const std::string exponent = mantissa.substr(mantissa.find('e'));
  mantissa.resize(mantissa.size() - exponent.size());
  if (precision > 1 && !alternate) mantissa.erase(mantissa.find_last_not_of(".0") + 1);
  return mantissa + exponent;
}

std::string magnitude_text(double magnitude, const FormatSpec& spec) {
  if (spec.type == '\0' && spec.precision >= 0) {
    return with_point_or_exponent(magnitude, std::max(spec.precision, 1), spec.alternate);
  }
  if (spec.type == '\0') {
    std::string text = python_repr(magnitude);
    if (spec.alternate && text.find_first_of(".n") == std::string::npos) {
      text.insert(text.find('e'), ".");
    }
    return text;
  }
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  if (spec.type == '%') return decimal(magnitude * 100, 'f', precision, spec.alternate) + "%";
  return decimal(magnitude, spec.type == 'n' ? 'g' : spec.type, precision, spec.alternate);
}

std::string format_real(double value, const FormatSpec& spec) {
  check_type(spec, "eEfFgGn%", "a number");
  refuse(spec.grouping != '\0' && spec.type == 'n', "Cannot specify a grouping with 'n'");
  const std::string text = magnitude_text(std::fabs(value), spec);
  const bool shows_zero =
      std::isfinite(value) &&
      text.substr(0, text.find_first_of("eE")).find_first_of("123456789") == std::string::npos;
  const bool negative =
      std::signbit(value) && !std::isnan(value) && !(spec.no_negative_zero && shows_zero);
  const size_t whole = std::min(text.find_first_not_of("0123456789"), text.size());
  return lay_out(sign_text(negative, spec.sign), text.substr(0, whole), text.substr(whole), spec);
}

std::string format_integer(int64_t value, const FormatSpec& spec) {
  if (contains("eEfFgG%", spec.type)) return format_real(static_cast<double>(value), spec);
  check_type(spec, "bcdnoxX", "a whole number");
  refuse(spec.precision >= 0, "Precision not allowed for a whole number");
  refuse(spec.no_negative_zero, "'z' not allowed for a whole number");
  const char type = spec.type == '\0' ? 'd' : spec.type;
  const bool power_of_two = contains("boxX", type);
  refuse(spec.grouping == ',' && type != 'd', "Cannot specify ',' with this type");
  refuse(spec.grouping == '_' && type != 'd' && !power_of_two, "Cannot specify '_' with this type");
  if (type == 'c') {
    refuse(spec.sign != '\0', "Sign not allowed with type 'c'");
    refuse(spec.alternate, "'#' not allowed with type 'c'");
    refuse(value < 0x20 || value > 0x7E, "type 'c' takes the code of a printable ASCII letter");
    return lay_out("", std::string(1, static_cast<char>(value)), "", spec);
  }
  const uint64_t magnitude =
      value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  std::string sign = sign_text(value < 0, spec.sign);
  if (spec.alternate && power_of_two) sign += std::string("0") + type;
  const std::string digits = fmt::vformat(fmt::format("{{:{}}}", type == 'n' ? 'd' : type),
                                          fmt::make_format_args(magnitude));
  return lay_out(sign, digits, "", spec, power_of_two ? 4 : 3);
}

std::string format_text(std::string text, const FormatSpec& spec) {
  check_type(spec, "s", "text");
  refuse(spec.sign != '\0', "Sign not allowed in the format spec of text");
  refuse(spec.no_negative_zero, "'z' not allowed in the format spec of text");
  refuse(spec.alternate, "'#' not allowed in the format spec of text");
  refuse(spec.align == '=', "'=' alignment not allowed in the format spec of text");
  refuse(spec.grouping != '\0', "Cannot group the digits of text");
  if (spec.precision >= 0) {
    size_t bytes = 0;
    for (int i = 0; i < spec.precision && bytes < text.size(); ++i)
      bytes += character_bytes(text[bytes]);
    text.resize(std::min(bytes, text.size()));
  }
  return pad("", text, spec, '<');
}

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

std::string python_format_value(const FormatValue& value, const std::string& spec) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return format_integer(*number, parse_spec(spec, /*numeric=*/true));
  }
  if (const auto* real = std::get_if<double>(&value)) {
    return format_real(*real, parse_spec(spec, /*numeric=*/true));
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return format_text(*text, parse_spec(spec, /*numeric=*/false));
  }
  if (spec.empty()) return python_text(value);
  // Python counts with its truth values as soon as there is a spec.
  if (const auto* flag = std::get_if<bool>(&value)) {
    return format_integer(*flag ? 1 : 0, parse_spec(spec, /*numeric=*/true));
  }
  if (std::holds_alternative<std::monostate>(value)) {
    throw ConfigError(
        "there is no value yet (None), which takes no format spec, got ':{}': leave the spec out",
        spec);
  }
  throw ConfigError("a list takes no format spec, got ':{}'", spec);
}

std::string python_text(const FormatValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&value)) return python_repr(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (std::holds_alternative<std::monostate>(value)) return "None";
  std::string list = "[";
  for (const double entry : std::get<std::vector<double>>(value)) {
    list += (list.size() > 1 ? ", " : "") + python_repr(entry);
  }
  return list + "]";
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace dalle2
