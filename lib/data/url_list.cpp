// SPDX-License-Identifier: MIT
// Lists of urls in one string, as webdataset writes them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/shards.h"

namespace dalle2 {
namespace {

std::string expand_variables(std::string text) {
  size_t from = 0;
  while ((from = text.find("${", from)) != std::string::npos) {
    const size_t end = text.find('}', from);
    if (end == std::string::npos) break;
    const std::string name = "WDS_" + text.substr(from + 2, end - from - 2);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw ConfigError(
          "url \"{}\": the environment variable {} is not set.\n  Set it, or write its value into "
          "the url.",
          text,
          name);
    }
    text.replace(from, end - from + 1, value);
    from += std::string(value).size();
  }
  return text;
}

/// Index of the brace that closes the one at `open`, npos without.
size_t closing_brace(const std::string& text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string::npos;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 18 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

/// The texts of "000..012", "0..6..2" or "a..f"; empty if `body` is no range. A leading zero keeps
/// the width.
std::vector<std::string> range_items(const std::string& body) {
  const size_t dots = body.find("..");
  if (dots == std::string::npos) return {};
  const size_t more = body.find("..", dots + 2);
  const std::string low = body.substr(0, dots);
  const std::string high =
      body.substr(dots + 2, more == std::string::npos ? more : more - dots - 2);
  const std::string stride = more == std::string::npos ? "1" : body.substr(more + 2);
  const bool letters = low.size() == 1 && high.size() == 1 && !is_number(low) && !is_number(high);
  if (!is_number(stride) || !(letters || (is_number(low) && is_number(high)))) return {};

  const int64_t first = letters ? low[0] : std::stoll(low);
  const int64_t last = letters ? high[0] : std::stoll(high);
  const int64_t step = std::max<int64_t>(std::stoll(stride), 1) * (first <= last ? 1 : -1);
  const bool padded = (low.size() > 1 && low[0] == '0') || (high.size() > 1 && high[0] == '0');
  const size_t width = padded ? std::max(low.size(), high.size()) : 1;
  std::vector<std::string> items;
  for (int64_t at = first; step > 0 ? at <= last : at >= last; at += step) {
    const std::string text = letters ? std::string(1, static_cast<char>(at)) : std::to_string(at);
    items.push_back(std::string(width > text.size() ? width - text.size() : 0, '0') + text);
  }
  return items;
}

/// Cuts at the commas that stand in no inner brace.
std::vector<std::string> list_items(const std::string& body) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : body) {
    if (c == '{') ++depth;
    if (c == '}') --depth;
    if (c == ',' && depth == 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

void expand_braces(const std::string& text, size_t from, std::vector<std::string>& out) {
  const size_t open = text.find('{', from);
  const size_t close = open == std::string::npos ? open : closing_brace(text, open);
  if (close == std::string::npos) {
    out.push_back(text);
    return;
  }
  const std::string body = text.substr(open + 1, close - open - 1);
  std::vector<std::string> items = range_items(body);
  if (items.empty()) {
    items = list_items(body);
    // "{}" and "{one}" are no alternatives: the braces stay, and what is inside is expanded.
    if (items.size() == 1) {
      expand_braces(text, open + 1, out);
      return;
    }
  }
  for (const std::string& item : items) {
    expand_braces(text.substr(0, open) + item + text.substr(close + 1), open, out);
  }
}

}  // namespace

std::vector<std::string> expand_urls(const std::string& text) {
  std::vector<std::string> urls;
  size_t from = 0;
  while (true) {
    const size_t end = text.find("::", from);
    expand_braces(expand_variables(text.substr(from, end - from)), 0, urls);
    if (end == std::string::npos) return urls;
    from = end + 2;
  }
}

}  // namespace dalle2
