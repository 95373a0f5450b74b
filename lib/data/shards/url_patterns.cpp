// SPDX-License-Identifier: MIT
#include "data/shards/url_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/shards.h"
#include "io/files/folder_names.h"
#include "io/files/listing.h"
#include "io/streams/url_source.h"

namespace dalle2 {
namespace {

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
  return number_of_digits(text).has_value();
}

/// Cuts at the commas that are in no inner brace.
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

}  // namespace

BracePattern::BracePattern(const std::string& text, int level) {
  if (level > kMostLevels) {
    add_text(text);
    return;
  }
  for (size_t from = 0; from < text.size();) {
    const size_t open = text.find('{', from);
    const size_t close = open == std::string::npos ? open : closing_brace(text, open);
    if (close == std::string::npos) {
      add_text(text.substr(from));
      break;
    }
    add_text(text.substr(from, open - from));
    const std::string body = text.substr(open + 1, close - open - 1);
    Part part;
    if (!read_range(body, part)) {
      const std::vector<std::string> items = list_items(body);
      // "{}" and "{one}" are not alternatives: the braces stay, and what is inside is expanded.
      if (items.size() == 1) {
        add_text("{");
        from = open + 1;
        continue;
      }
      part.size = 0;
      for (const std::string& item : items) {
        part.choices.push_back(BracePattern(item, level + 1));
        part.size = std::min(part.size + part.choices.back().size(), kMost);
      }
    }
    parts_.push_back(std::move(part));
    from = close + 1;
  }
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    part->stride = size_;
    size_ = std::min(size_ * part->size, kMost);  // neither is above kMost
  }
}

/// "000..012", "0..6..2" or "a..f". A leading zero keeps the width. @return false for another text
bool BracePattern::read_range(const std::string& body, Part& part) {
  const size_t dots = body.find("..");
  if (dots == std::string::npos) return false;
  const size_t more = body.find("..", dots + 2);
  const std::string low = body.substr(0, dots);
  const std::string high =
      body.substr(dots + 2, more == std::string::npos ? more : more - dots - 2);
  const std::string stride = more == std::string::npos ? "1" : body.substr(more + 2);
  part.letters = low.size() == 1 && high.size() == 1 && !is_number(low) && !is_number(high);
  if (!is_number(stride) || !(part.letters || (is_number(low) && is_number(high)))) return false;

  part.is_range = true;
  part.first = part.letters ? low[0] : std::stoll(low);
  const int64_t last = part.letters ? high[0] : std::stoll(high);
  const int64_t step = std::max<int64_t>(std::stoll(stride), 1);
  part.step = part.first <= last ? step : -step;
  part.size = std::min(static_cast<uint64_t>(std::abs(last - part.first) / step) + 1, kMost);
  const bool padded = (low.size() > 1 && low[0] == '0') || (high.size() > 1 && high[0] == '0');
  if (padded) part.width = static_cast<int>(std::max(low.size(), high.size()));
  return true;
}

bool is_brace_range(const std::string& body) {
  BracePattern::Part part;
  return BracePattern::read_range(body, part);
}

void BracePattern::add_text(const std::string& text) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().is_range || !parts_.back().choices.empty()) {
    parts_.emplace_back();
  }
  parts_.back().text += text;
}

void BracePattern::append(uint64_t index, std::string& out) const {
  for (const Part& part : parts_) {
    uint64_t at = index / part.stride % part.size;
    if (!part.choices.empty()) {
      auto choice = part.choices.begin();
      for (; at >= choice->size(); ++choice) at -= choice->size();
      choice->append(at, out);
    } else if (part.is_range) {
      const int64_t value = part.first + static_cast<int64_t>(at) * part.step;
      out += part.letters ? std::string(1, static_cast<char>(value))
                          : fmt::format("{:0{}}", value, part.width);
    } else {
      out += part.text;
    }
  }
}

std::string BracePattern::at(uint64_t index) const {
  D2_CHECK(index < size_, "text {} of {}", index, size_);
  std::string text;
  append(index, text);
  return text;
}

namespace {

/// Width of the placeholder `body` (what stands between the braces), none if it is not one of ours.
std::optional<int64_t> placeholder_width(const std::string& body, int64_t width) {
  std::string format = body;
  if (!format.empty() && format[0] == '0') format.erase(0, 1);
  if (format.empty()) return width;
  if (format.front() != ':' || format.back() != 'd' || format.size() > 5) return std::nullopt;
  const std::string digits = format.substr(1, format.size() - 2);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return digits.empty() ? 0 : std::stoll(digits);
}

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

/// Faults of the braces of a url, with the place.
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
        refuse(i, fmt::format("braces nested more than {} deep", BracePattern::kMostLevels));
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
      refuse(at, fmt::format("{{{}}} is not a range of whole numbers or of two letters", body));
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
      throw ConfigError("{}: \"{}...\": a url of {} bytes; the longest allowed has {}.",
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

std::string UrlTemplate::with(int64_t number) const {
  return before + fmt::format("{:0{}}", number, static_cast<int>(width)) + after;
}

UrlTemplate parse_url_template(const std::string& text, int64_t width, const std::string& key) {
  UrlTemplate url;
  bool found = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& out = found ? url.after : url.before;
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '}') {
      throw ConfigError(
          "{}: \"{}\": at character {}: the }} has no opening brace.\n  Write {{}} once, for the "
          "padded shard number, and }}}} for a plain brace.",
          key,
          public_url(text),
          i + 1);
    } else if (c == '{') {
      const size_t end = text.find('}', i);
      const std::string body = end == std::string::npos ? "" : text.substr(i + 1, end - i - 1);
      const auto digits = placeholder_width(body, width);
      if (end == std::string::npos || !digits || found) {
        throw ConfigError(
            "{}: \"{}\": at character {}: {}.\n  Write {{}} once, for the padded shard number, and "
            "{{{{ for a plain brace.",
            key,
            public_url(text),
            i + 1,
            end == std::string::npos ? "the { has no closing brace"
            : found                  ? "a second placeholder"
                                     : "an unknown placeholder");
      }
      url.width = *digits;
      found = true;
      i = end;
    } else {
      out += c;
    }
  }
  if (!found) {
    throw ConfigError(
        "{}: \"{}\" has no {{}} for the shard number, so all shards would be one file.\n  Write "
        "for example \"folder/{{}}.tar\".",
        key,
        public_url(text));
  }
  return url;
}

bool has_url_placeholder(const std::string& text) {
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
    if (text[open + 1] == '{') {  // a plain brace
      ++open;
      continue;
    }
    const size_t end = text.find('}', open);
    if (end == std::string::npos) return false;
    if (placeholder_width(text.substr(open + 1, end - open - 1), 1)) return true;
  }
  return false;
}

std::optional<std::vector<int64_t>> existing_numbers(const UrlTemplate& url) {
  const bool local = is_local_url(url.before + url.after);
  const std::string before = local ? local_path(url.before) : url.before;
  const size_t slash = before.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : before.substr(0, slash + 1);
  const std::string prefix = before.substr(folder.size());
  // With the number in a folder's name, the rest of the path is asked for afterwards.
  const size_t tail = std::min(url.after.find('/'), url.after.size());
  const std::string suffix = url.after.substr(0, tail);
  std::vector<std::string> names;
  if (local) {
    names = names_in_folder(folder);
  } else if ((url.before.starts_with("s3://") || url.before.starts_with("hf://")) &&
             tail == url.after.size()) {
    try {
      for (const ListedFile& file : list_folder(folder)) names.push_back(file.name);
    } catch (const HttpStatusError& error) {
      log_warning(
          "data",
          "{}\n  The shards are not listed, so absent ones are noticed only when they are read.",
          error.what());
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
        !name.ends_with(suffix)) {
      continue;
    }
    const auto number =
        number_of_digits(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
    if (!number) continue;
    const std::string file = local ? local_path(url.with(*number)) : url.with(*number);
    std::error_code ignored;
    const bool there = tail == url.after.size() || std::filesystem::exists(file, ignored);
    if (there && file == folder + name + url.after.substr(tail)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace dalle2
