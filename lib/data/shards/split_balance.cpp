// SPDX-License-Identifier: MIT
#include "data/shards/split_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shards.h"

namespace dalle2 {
namespace {

constexpr std::array kSplitNames = {"train", "val", "test"};
constexpr int64_t kLeastGroup = 20;
constexpr double kOddDeviations = 5;
using Counts = std::array<double, kSplitNames.size()>;

/// The top folder of a picture; empty without one.
std::string top_folder(const GroupedSample& sample, const std::string& shard_url) {
  std::string path;
  if (is_picture_shard(shard_url)) {
    path = sample.key;
  } else if (const std::string* notes = sample.find({"json"})) {
    path = text_member(parse_untrusted_object(*notes), "source");
  }
  return path.substr(0, path.find('/') == std::string::npos ? 0 : path.find('/'));
}

/// The split of each shard by a first config; none if a split would be empty.
std::optional<std::vector<size_t>> splits_of(size_t shards) {
  const auto count = static_cast<int64_t>(shards);
  const auto split = split_positions(first_splits(count), count, /*seed=*/0);
  if (!split) return std::nullopt;
  std::vector<size_t> of_shard(shards, 0);
  for (const uint32_t position : split->val) of_shard[position] = 1;
  for (const uint32_t position : split->test) of_shard[position] = 2;
  return of_shard;
}

/// How far a count is from what is expected, in standard deviations (Anscombe 1948).
double deviation(double count, double expected) {
  return 2 * (std::sqrt(count + 0.375) - std::sqrt(expected + 0.375));
}

/// The line about one property; empty if its values are divided as chance may divide them.
std::string judge(const std::string& property, const std::map<std::string, Counts>& values) {
  Counts sums = {}, rest = {};
  double all = 0;
  std::vector<std::pair<std::string, Counts>> groups;
  for (const auto& [value, counts] : values) {
    double of_value = 0;
    for (const double count : counts) of_value += count;
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += counts[i];
      if (of_value < kLeastGroup) rest[i] += counts[i];
    }
    all += of_value;
    if (of_value >= kLeastGroup) groups.emplace_back(value, counts);
  }
  const size_t named = groups.size();
  if (rest[0] + rest[1] + rest[2] > 0) groups.emplace_back("", rest);
  if (groups.size() < 2) return "";
  double chi_squared = 0, largest = 0;
  size_t worst = 0, worst_split = 0;
  bool is_missing = false;
  const double cells = static_cast<double>(groups.size() * sums.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const Counts& counts = groups[g].second;
    const double of_group = counts[0] + counts[1] + counts[2];
    for (size_t i = 0; i < sums.size(); ++i) {
      const double expected = of_group * sums[i] / all;
      if (expected == 0) continue;
      chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
      const double off = std::abs(deviation(counts[i], expected));
      is_missing = is_missing || (g < named && counts[i] == 0 && expected > 7 + std::log(cells));
      if (g >= named || off <= largest) continue;
      largest = off;
      worst = g;
      worst_split = i;
    }
  }
  const double freedom = static_cast<double>((groups.size() - 1) * (sums.size() - 1));
  // Wilson & Hilferty 1931
  const double spread = 2 / (9 * freedom);
  const double score = (std::cbrt(chi_squared / freedom) - (1 - spread)) / std::sqrt(spread);
  if (score <= kOddDeviations && largest <= kOddDeviations && !is_missing) return "";
  const auto& [value, counts] = groups[worst];
  const double of_group = counts[0] + counts[1] + counts[2];
  return fmt::format(
      "the splits differ by {}: {} has {} of the {} samples in {}, where a mixed set has about {:.0f}; "
      "`dalle2-train shards make --from SHARDS --out DIR` mixes a set",
      property,
      one_line(value),
      with_commas(static_cast<int64_t>(counts[worst_split])),
      with_commas(static_cast<int64_t>(of_group)),
      kSplitNames[worst_split],
      of_group * sums[worst_split] / all);
}

}  // namespace

void ShardTraits::add(const GroupedSample& sample,
                      const std::string& shard_url,
                      int64_t short_side,
                      bool is_transparent) {
  if (const std::string folder = top_folder(sample, shard_url); !folder.empty()) {
    ++values["top folder"][folder];
  }
  if (const std::string* label = sample.find({"cls"})) ++values["class"][*label];
  const auto side = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(short_side, 1)));
  ++values["shorter side"][fmt::format("{} to {} pixels", side, 2 * side - 1)];
  ++values["transparency"][is_transparent ? "transparent" : "opaque"];
  if (const std::string* picture = sample.picture()) {
    pictures.insert(std::hash<std::string_view>{}(*picture));
  }
}

std::vector<std::string> compare_splits(const std::vector<ShardTraits>& shards) {
  const auto split_of = splits_of(shards.size());
  if (!split_of) return {};
  std::map<std::string, std::map<std::string, Counts>> properties;
  std::map<uint64_t, size_t> first_split;
  int64_t repeated = 0;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const size_t split = (*split_of)[shard];
    for (const auto& [property, values] : shards[shard].values) {
      for (const auto& [value, count] : values) {
        properties[property][value][split] += static_cast<double>(count);
      }
    }
    for (const uint64_t picture : shards[shard].pictures) {
      if (first_split.emplace(picture, split).first->second != split) ++repeated;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [property, values] : properties) {
    if (std::string line = judge(property, values); !line.empty()) lines.push_back(line);
  }
  if (repeated > 0) {
    lines.push_back(
        fmt::format("{} in another split too, as the same file: a validation would "
                    "measure what was trained on",
                    counted(repeated, "picture is", "pictures are")));
  }
  return lines;
}

}  // namespace dalle2
