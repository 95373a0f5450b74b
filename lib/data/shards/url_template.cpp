// SPDX-License-Identifier: MIT
#include "data/shards/url_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "io/files/folder_names.h"
#include "io/files/listing.h"
#include "io/streams/url_source.h"

namespace dalle2 {
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

}  // namespace

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
