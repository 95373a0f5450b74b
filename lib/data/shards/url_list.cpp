// SPDX-License-Identifier: MIT
// Lists of urls in one string, as webdataset writes them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/brace_pattern.h"
#include "data/shards/shards.h"
#include "io/streams/url_source.h"

namespace dalle2 {
namespace {

constexpr size_t kMostUrlBytes = 1 << 16;  ///< of one address

std::string expand_variables(std::string text, const std::string& key) {
  size_t from = 0;
  while ((from = text.find("${", from)) != std::string::npos) {
    const size_t end = text.find('}', from);
    if (end == std::string::npos) break;
    const std::string name = "WDS_" + text.substr(from + 2, end - from - 2);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw ConfigError(
          "{}: \"{}\": the environment variable {} is not set.\n  Set it, or write its value into "
          "the url.",
          key,
          public_url(text),
          name);
    }
    text.replace(from, end - from + 1, value);
    from += std::string(value).size();
  }
  return text;
}

/// Faults of the braces of an url, with the place.
class BraceCheck {
 public:
  BraceCheck(const std::string& text, const std::string& key) : text_(text), key_(key) {}

  /// A brace that was forgotten, or a range that is none, would make one shard of many. Commands
  /// have braces of their own.
  void run() const {
    if (text_.starts_with("pipe:")) return;
    std::vector<size_t> open;
    for (size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] == '{') open.push_back(i);
      if (open.size() > static_cast<size_t>(BracePattern::kMostLevels)) {
        refuse(i, fmt::format("more than {} braces within each other", BracePattern::kMostLevels));
      }
      if (text_[i] != '}') continue;
      if (open.empty()) refuse(i, "the } has no opening brace");
      check_body(open.back(), text_.substr(open.back() + 1, i - open.back() - 1));
      open.pop_back();
    }
    if (!open.empty()) refuse(open.back(), "the { has no closing brace");
  }

 private:
  void check_body(size_t at, const std::string& body) const {
    const bool plain = body.find_first_of("{},") == std::string::npos;
    if (plain && body.find("..") != std::string::npos && !is_brace_range(body)) {
      refuse(at, fmt::format("{{{}}} is no range of whole numbers or of two letters", body));
    }
  }

  [[noreturn]] void refuse(size_t at, const std::string& fault) const {
    throw ConfigError(
        "{}: \"{}\": at character {}: {}.\n"
        "  Write a range as {{000..123}}, {{0..98..2}} or {{a..f}}, a list as {{a,b}}, or {{}} "
        "once for a shard's number.",
        key_,
        public_url(text_),
        at + 1,
        fault);
  }

  const std::string& text_;
  const std::string& key_;
};

}  // namespace

std::vector<BracePattern> url_patterns(const std::string& text, const std::string& key) {
  std::vector<BracePattern> patterns;
  size_t from = 0;
  while (true) {
    const size_t end = text.find("::", from);
    const std::string url = expand_variables(text.substr(from, end - from), key);
    if (url.size() > kMostUrlBytes) {
      throw ConfigError("{}: \"{}...\": an url of {} bytes; at most {} are taken.",
                        key,
                        as_utf8(public_url(url).substr(0, 60)),
                        url.size(),
                        kMostUrlBytes);
    }
    BraceCheck(url, key).run();
    patterns.emplace_back(url);
    if (end == std::string::npos) return patterns;
    from = end + 2;
  }
}

std::vector<std::string> expand_urls(const std::string& text, const std::string& key) {
  std::vector<std::string> urls;
  for (const BracePattern& pattern : url_patterns(text, key)) {
    if (pattern.size() >= BracePattern::kMost) {
      throw ConfigError("{}: \"{}\" stands for {} urls or more.\n  Write a smaller range.",
                        key,
                        public_url(text),
                        with_commas(static_cast<int64_t>(BracePattern::kMost)));
    }
    for (uint64_t i = 0; i < pattern.size(); ++i) urls.push_back(pattern.at(i));
  }
  return urls;
}

int64_t shard_number(const std::string& address) {
  const std::string name = url_file_name(address);
  const std::string digits = name.substr(0, name.find('.'));
  return number_of_digits(digits).value_or(-1);
}

}  // namespace dalle2
