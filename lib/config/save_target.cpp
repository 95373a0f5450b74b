// SPDX-License-Identifier: MIT
#include "config/save_target.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "base/text.h"

namespace dalle2 {
namespace {

bool one_of_signs(const std::string& text, size_t at, const char* signs) {
  return at < text.size() && std::string_view(signs).find(text[at]) != std::string_view::npos;
}

// Python's format mini-language: [[fill]align][sign][#][0][width][grouping][.precision][type].
bool spec_fits(PlaceholderType type, const std::string& spec) {
  if (type == PlaceholderType::list) return spec.empty();
  const bool number = type == PlaceholderType::number;
  const char* aligns = number ? "<>=^" : "<>^";
  size_t at = 0;
  const auto skip = [&](const char* signs) { at += one_of_signs(spec, at, signs) ? 1 : 0; };
  const auto skip_digits = [&] {
    const size_t begin = at;
    while (one_of_signs(spec, at, "0123456789")) ++at;
    return at > begin;
  };
  if (one_of_signs(spec, 1, aligns)) {
    at = 2;
  } else {
    skip(aligns);
  }
  if (number) {
    skip("-+ ");
    skip("#");
  }
  skip_digits();
  if (number) skip("_,");
  if (one_of_signs(spec, at, ".")) {
    ++at;
    if (!skip_digits()) return false;
  }
  skip(number ? "bcdeEfFgGnoxX%" : "s");
  return at == spec.size();
}

std::optional<std::string> placeholder_fault(const std::string& field,
                                             std::span<const Placeholder> known) {
  const size_t colon = field.find(':');
  const std::string name = field.substr(0, colon);
  const std::string spec = colon == std::string::npos ? "" : field.substr(colon + 1);
  std::vector<std::string> names;
  std::string list;
  for (const Placeholder& placeholder : known) {
    if (placeholder.name == name) {
      if (spec_fits(placeholder.type, spec)) return std::nullopt;
      return fmt::format("the format \":{}\" does not fit {{{}}}", spec, name);
    }
    names.emplace_back(placeholder.name);
    list += fmt::format("{}{{{}}}", list.empty() ? "" : " ", placeholder.name);
  }
  const std::optional<std::string> near = nearest_word(name, names);
  return fmt::format("unknown placeholder {{{}}}{}; known are {}",
                     name,
                     near ? fmt::format(", did you mean {{{}}}", *near) : "",
                     list);
}

std::optional<std::string> parent_fault(const std::string& target) {
  size_t begin = 0;
  while (begin <= target.size()) {
    const size_t end = std::min(target.find('/', begin), target.size());
    if (target.substr(begin, end - begin) == "..") {
      return fmt::format("must not contain \"..\", got \"{}\"", target);
    }
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> template_fault(const std::string& text,
                                          std::span<const Placeholder> known) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{' && text[i] != '}') continue;
    if (i + 1 < text.size() && text[i + 1] == text[i]) {
      ++i;
      continue;
    }
    const size_t end = text.find('}', i);
    if (text[i] == '}' || end == std::string::npos) {
      return fmt::format(
          "single \"{}\" in \"{}\"; write \"{}{}\" for a brace", text[i], text, text[i], text[i]);
    }
    if (auto fault = placeholder_fault(text.substr(i + 1, end - i - 1), known)) {
      return fault;
    }
    i = end;
  }
  return parent_fault(text);
}

std::optional<std::string> folder_fault(const std::string& target) {
  return parent_fault(target);
}

}  // namespace dalle2
