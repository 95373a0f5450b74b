// SPDX-License-Identifier: MIT
#include "config/save_target.h"

#include <fmt/format.h>

#include <regex>
#include <vector>

#include "base/text.h"

namespace dalle2 {
namespace {

const std::vector<std::string> kPlaceholders = {
    "epoch", "sample", "next_task", "validation_losses", "samples_seen"};

// Python's format mini-language for the three kinds of value.
bool spec_fits(const std::string& name, const std::string& spec) {
  static const std::regex kNumber("(.?[<>=^])?[-+ ]?#?0?[0-9]*[_,]?(\\.[0-9]+)?[bcdeEfFgGnoxX%]?");
  static const std::regex kText("(.?[<>^])?[0-9]*(\\.[0-9]+)?s?");
  if (name == "validation_losses") return spec.empty();
  return std::regex_match(spec, name == "next_task" ? kText : kNumber);
}

std::string known_placeholders() {
  std::string text;
  for (const std::string& name : kPlaceholders) text += (text.empty() ? "{" : " {") + name + "}";
  return text;
}

std::optional<std::string> placeholder_fault(const std::string& field) {
  const size_t colon = field.find(':');
  const std::string name = field.substr(0, colon);
  const std::string spec = colon == std::string::npos ? "" : field.substr(colon + 1);
  bool known = false;
  for (const std::string& placeholder : kPlaceholders) known |= placeholder == name;
  if (!known) {
    const std::optional<std::string> near = nearest_word(name, kPlaceholders);
    return fmt::format("unknown placeholder {{{}}}{}; known are {}",
                       name,
                       near ? fmt::format(", did you mean {{{}}}", *near) : "",
                       known_placeholders());
  }
  if (!spec_fits(name, spec)) {
    return fmt::format("the format \":{}\" does not fit {{{}}}", spec, name);
  }
  return std::nullopt;
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

std::optional<std::string> template_fault(const std::optional<std::string>& target) {
  if (!target) return std::nullopt;
  const std::string& text = *target;
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
    if (auto fault = placeholder_fault(text.substr(i + 1, end - i - 1))) return fault;
    i = end;
  }
  return parent_fault(text);
}

std::optional<std::string> folder_fault(const std::optional<std::string>& target) {
  return target ? parent_fault(*target) : std::nullopt;
}

}  // namespace dalle2
