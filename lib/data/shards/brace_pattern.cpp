// SPDX-License-Identifier: MIT
#include "data/shards/brace_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/text.h"

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
      // "{}" and "{one}" are no alternatives: the braces stay, and what is inside is expanded.
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

}  // namespace dalle2
