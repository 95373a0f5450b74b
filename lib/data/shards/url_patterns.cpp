// SPDX-License-Identifier: MIT
#include "data/shards/url_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
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

/// "000..012", "0..6..2" or "a..f". A leading zero keeps the width.
struct Range {
  int64_t first = 0, step = 1;
  uint64_t count = 0;
  int width = 0;  // digits
  bool letters = false;

  std::string at(uint64_t index) const {
    const int64_t value = first + static_cast<int64_t>(index) * step;
    return letters ? std::string(1, static_cast<char>(value)) : fmt::format("{:0{}}", value, width);
  }
};

/// @param body what stands between the braces @return none for another text
std::optional<Range> range_of(const std::string& body) {
  const size_t dots = body.find("..");
  if (dots == std::string::npos) return std::nullopt;
  const size_t more = body.find("..", dots + 2);
  const std::string low = body.substr(0, dots);
  const std::string high =
      body.substr(dots + 2, more == std::string::npos ? more : more - dots - 2);
  const std::string stride = more == std::string::npos ? "1" : body.substr(more + 2);
  Range range;
  range.letters = low.size() == 1 && high.size() == 1 && !is_number(low) && !is_number(high);
  if (!is_number(stride) || !(range.letters || (is_number(low) && is_number(high))))
    return std::nullopt;

  range.first = range.letters ? low[0] : std::stoll(low);
  const int64_t last = range.letters ? high[0] : std::stoll(high);
  const int64_t step = std::max<int64_t>(std::stoll(stride), 1);
  range.step = range.first <= last ? step : -step;
  range.count = static_cast<uint64_t>(std::abs(last - range.first) / step) + 1;
  const bool padded = (low.size() > 1 && low[0] == '0') || (high.size() > 1 && high[0] == '0');
  if (padded) range.width = static_cast<int>(std::max(low.size(), high.size()));
  return range;
}

/// Lists within each other; the braces of deeper ones stay as they are.
constexpr int kMostLevels = 32;

struct TooMany {};

/// The expansions of a text in the shell's order: the last braces change first. Other braces stay as
/// they are. @throws TooMany for more than `most`
std::vector<std::string> expansions(const std::string& text, uint64_t most, int level = 0) {
  std::vector<std::string> texts(1);
  for (size_t from = 0; from < text.size();) {
    const size_t open = level > kMostLevels ? std::string::npos : text.find('{', from);
    const size_t close = open == std::string::npos ? open : closing_brace(text, open);
    const size_t end = close == std::string::npos ? text.size() : open;
    for (std::string& each : texts) each.append(text, from, end - from);
    if (close == std::string::npos) break;
    const std::string body = text.substr(open + 1, close - open - 1);
    std::vector<std::string> choices;
    if (const auto range = range_of(body)) {
      if (range->count > most) throw TooMany();
      for (uint64_t i = 0; i < range->count; ++i) choices.push_back(range->at(i));
    } else if (const auto items = list_items(body); items.size() > 1) {
      for (const std::string& item : items) {
        const auto more = expansions(item, most, level + 1);
        choices.insert(choices.end(), more.begin(), more.end());
        if (choices.size() > most) throw TooMany();
      }
    } else {  // "{}" and "{one}" are not alternatives: what is inside is expanded
      for (std::string& each : texts) each += '{';
      from = open + 1;
      continue;
    }
    if (choices.size() * texts.size() > most) throw TooMany();
    std::vector<std::string> longer;
    for (const std::string& begin : texts) {
      for (const std::string& choice : choices) longer.push_back(begin + choice);
    }
    texts = std::move(longer);
    from = close + 1;
  }
  return texts;
}

constexpr size_t kMostUrlBytes = 1 << 16;  ///< of one address
/// Of an address that a message shows; braces may list any number of names.
constexpr size_t kMostToldBytes = 300;
constexpr std::string_view kBetween = "::";

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

/// A brace that was forgotten, or a range that is none, would make one shard of many. Commands have
/// braces of their own.
void check_braces(const std::string& text, const std::string& key) {
  if (text.starts_with("pipe:")) return;
  const auto refuse = [&](size_t at, const std::string& fault) {
    throw ConfigError(
        "{}: \"{}\": at character {}: {}.\n"
        "  Write a range as {{000..123}}, {{0..98..2}} or {{a..f}}, a list as {{a,b}}, or {{}} "
        "once for a shard's number.",
        key,
        public_url(text),
        at + 1,
        fault);
  };
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') open.push_back(i);
    if (open.size() > static_cast<size_t>(kMostLevels))
      refuse(i, fmt::format("braces nested more than {} deep", kMostLevels));
    if (text[i] != '}') continue;
    if (open.empty()) refuse(i, "the } has no opening brace");
    const std::string body = text.substr(open.back() + 1, i - open.back() - 1);
    const bool is_plain = body.find_first_of("{},") == std::string::npos;
    if (is_plain && body.find("..") != std::string::npos && !range_of(body)) {
      refuse(open.back(),
             fmt::format("{{{}}} is not a range of whole numbers or of two letters", body));
    }
    open.pop_back();
  }
  if (!open.empty()) refuse(open.back(), "the { has no closing brace");
}

}  // namespace

std::vector<std::string> expand_urls(const std::string& text,
                                     const std::string& key,
                                     uint64_t most) {
  std::vector<std::string> urls;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(kBetween, from), text.size());
    const std::string url = expand_variables(text.substr(from, end - from), key);
    from = end + kBetween.size();
    if (url.size() > kMostUrlBytes) {
      throw ConfigError("{}: \"{}...\": a url of {} bytes; the longest allowed has {}.",
                        key,
                        as_utf8(public_url(url).substr(0, 60)),
                        url.size(),
                        kMostUrlBytes);
    }
    check_braces(url, key);
    try {
      std::vector<std::string> texts = expansions(url, most - urls.size());
      urls.insert(
          urls.end(), std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end()));
    } catch (const TooMany&) {
      throw ConfigError("{}: {} stands for more than {} shards.\n  Give a smaller range.",
                        key,
                        short_shards({text}),
                        with_commas(static_cast<int64_t>(most)));
    }
  }
  return urls;
}

std::string short_shards(const std::vector<std::string>& texts) {
  if (texts.empty()) return "an empty list";
  // In what may be shown of a text only addresses stand between two "::".
  size_t count = 0;
  std::string first;
  for (const std::string& text : texts) {
    const std::string list = public_url(text);
    for (size_t begin = 0, end = 0; end < list.size(); begin = end + kBetween.size(), ++count) {
      end = std::min(list.find(kBetween, begin), list.size());
      if (count == 0) first = list.substr(begin, end - begin);
    }
  }
  if (first.size() > kMostToldBytes) first = as_utf8(first.substr(0, kMostToldBytes)) + "...";
  if (count <= 1) return first;
  return fmt::format("{} and {} more", first, with_commas(static_cast<int64_t>(count - 1)));
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
  UrlTemplate url{.before = {}, .after = {}, .width = width};
  bool found = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string two = text.substr(i, 2);
    const bool is_place = two == "{}" && !found, is_plain = two == "{{" || two == "}}";
    const bool is_brace = text[i] == '{' || text[i] == '}';
    if (is_brace && !is_place && !is_plain) {
      throw ConfigError(
          "{}: \"{}\": at character {}: {}.\n  Write {{}} once, for the padded shard number, and "
          "{{{{ or }}}} for a plain brace.",
          key,
          public_url(text),
          i + 1,
          text[i] == '}'                           ? "the } has no opening brace"
          : text.find('}', i) == std::string::npos ? "the { has no closing brace"
          : found                                  ? "a second placeholder"
                                                   : "an unknown placeholder");
    }
    if (!is_place) (found ? url.after : url.before) += text[i];
    found = found || is_place;
    if (is_place || is_plain) ++i;
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
    const bool there = tail == url.after.size() || path_exists(file);
    if (there && file == folder + name + url.after.substr(tail)) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace dalle2
