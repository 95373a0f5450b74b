// SPDX-License-Identifier: MIT
#include "config/shared/save_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/public_url.h"
#include "base/python_format.h"

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

}  // namespace dalle2
