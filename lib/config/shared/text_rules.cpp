// SPDX-License-Identifier: MIT
#include "config/shared/text_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/public_url.h"
#include "base/python_format.h"
#include "config/reading/json_text.h"

namespace dalle2 {
namespace {

FormatValue example_of(PlaceholderType type) {
  switch (type) {
    case PlaceholderType::integer:
      return int64_t{0};
    case PlaceholderType::real:
      return 0.0;
    case PlaceholderType::text:
      return std::string("train");
    case PlaceholderType::list:
      break;
  }
  return std::vector<double>{0.0};
}

std::optional<std::string> parent_fault(const std::string& target) {
  size_t begin = 0;
  while (begin <= target.size()) {
    const size_t end = std::min(target.find('/', begin), target.size());
    if (target.substr(begin, end - begin) == "..") {
      return fmt::format("must not contain \"..\", got \"{}\"", public_url(target));
    }
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> template_fault(const std::string& text,
                                          std::span<const Placeholder> known) {
  FormatFields examples;
  for (const Placeholder& placeholder : known) {
    examples.emplace_back(placeholder.name, example_of(placeholder.type));
  }
  if (auto fault = python_format_fault(text, examples)) return fault;
  return parent_fault(text);
}

std::optional<std::string> folder_fault(const std::string& target) {
  return parent_fault(target);
}

namespace {

constexpr const char* kNumbered = "cuda:";
constexpr size_t kMostDigits = 4;

bool is_gpu_number(const std::string& text) {
  return !text.empty() && text.size() <= kMostDigits &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::optional<std::string> device_fault(const std::string& name) {
  if (name == "cpu" || name == "cuda") return std::nullopt;
  if (name.starts_with(kNumbered) && is_gpu_number(name.substr(5))) return std::nullopt;
  return "expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU with at most 4 digits, "
         "got " +
         shown(name);
}

}  // namespace dalle2
