// SPDX-License-Identifier: MIT
// Lists of urls in one string, as webdataset writes them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/brace_pattern.h"
#include "data/shards.h"

namespace dalle2 {
namespace {

constexpr uint64_t kMostUrls = 100'000'000;  ///< in memory at once

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

/// A brace that was forgotten would make one shard of many. Commands have braces of their own.
void check_braces(const std::string& text) {
  if (text.starts_with("pipe:")) return;
  std::vector<size_t> open;
  size_t odd = std::string::npos;
  for (size_t i = 0; i < text.size() && odd == std::string::npos; ++i) {
    if (text[i] == '{') open.push_back(i);
    if (text[i] != '}') continue;
    if (open.empty()) {
      odd = i;
    } else {
      open.pop_back();
    }
  }
  if (odd == std::string::npos && !open.empty()) odd = open.back();
  if (odd == std::string::npos) return;
  throw ConfigError(
      "url \"{}\": the {} at character {} has no {}.\n  Write a range as {{000..123}}, a list as "
      "{{a,b}}.",
      public_url(text),
      text[odd],
      odd + 1,
      text[odd] == '{' ? "closing brace" : "opening brace");
}

}  // namespace

std::vector<BracePattern> url_patterns(const std::string& text) {
  std::vector<BracePattern> patterns;
  size_t from = 0;
  while (true) {
    const size_t end = text.find("::", from);
    const std::string url = expand_variables(text.substr(from, end - from));
    check_braces(url);
    patterns.emplace_back(url);
    if (end == std::string::npos) return patterns;
    from = end + 2;
  }
}

std::vector<std::string> expand_urls(const std::string& text) {
  std::vector<std::string> urls;
  for (const BracePattern& pattern : url_patterns(text)) {
    if (pattern.size() > kMostUrls) {
      throw ConfigError("\"{}\" stands for more than {} urls.\n  Write a smaller range.",
                        public_url(text),
                        kMostUrls);
    }
    for (uint64_t i = 0; i < pattern.size(); ++i) urls.push_back(pattern.at(i));
  }
  return urls;
}

int64_t shard_number(const std::string& address) {
  const std::string url = public_url(address);  // a query may hold slashes
  const size_t slash = url.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const std::string digits = url.substr(begin, url.find('.', begin) - begin);
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return -1;
  }
  return std::stoll(digits);
}

}  // namespace dalle2
