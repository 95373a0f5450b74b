// SPDX-License-Identifier: MIT
// The findings of `shards check` in words, and what tells whether the splits are alike.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"

namespace dalle2 {
namespace {

/// "3 broken pictures" for a count above 0, behind a comma.
void append_count(std::string& text,
                  int64_t count,
                  const std::string& one,
                  const std::string& many) {
  if (count == 0) return;
  if (!text.empty()) text += ", ";
  text += counted(count, one, many);
}

void append_count(std::string& text, int64_t count, const std::string& what) {
  append_count(text, count, what, what);
}

void append_text(std::string& text, const std::string& more) {
  if (more.empty()) return;
  if (!text.empty()) text += ", ";
  text += more;
}

std::string faults_of(const EmbeddingCheck& check, const std::string& kind) {
  const std::string one = kind + " embedding", many = kind + " embeddings";
  std::string text = printable(check.fault);
  append_count(text, check.missing, "without " + kind + " embedding");
  append_count(text, check.zero, "zero " + one, "zero " + many);
  append_count(text, check.not_finite, one + " not finite", many + " not finite");
  append_count(text, check.wrong_shape, one + " of another shape", many + " of another shape");
  append_count(text, check.shared, "shares a row of " + many, "share a row of " + many);
  append_count(text, check.idle, one + " without a sample", many + " without a sample");
  return text;
}

std::string faults_of(const ShardCheck& shard) {
  std::string text = printable(shard.fault);
  append_count(text, shard.no_picture, "without picture");
  append_count(text, shard.broken_pictures, "broken picture", "broken pictures");
  append_count(text, shard.repeated_keys, "repeated key", "repeated keys");
  append_count(text, shard.repeated_members, "repeated member", "repeated members");
  append_count(text,
               shard.foreign_keys,
               "key with another shard's number",
               "keys with another shard's number");
  if (shard.without_end) append_text(text, "without its end marker: it may have been cut");
  append_text(text, shard.unread);
  append_text(text, faults_of(shard.image, "image"));
  append_text(text, faults_of(shard.text, "text"));
  return text;
}

constexpr int64_t EmbeddingCheck::*kEmbeddingCounts[] = {&EmbeddingCheck::missing,
                                                         &EmbeddingCheck::zero,
                                                         &EmbeddingCheck::not_finite,
                                                         &EmbeddingCheck::wrong_shape,
                                                         &EmbeddingCheck::found,
                                                         &EmbeddingCheck::rows,
                                                         &EmbeddingCheck::beyond,
                                                         &EmbeddingCheck::shared,
                                                         &EmbeddingCheck::idle};
constexpr int64_t ShardCheck::*kShardCounts[] = {&ShardCheck::samples,
                                                 &ShardCheck::usable,
                                                 &ShardCheck::no_picture,
                                                 &ShardCheck::broken_pictures,
                                                 &ShardCheck::no_caption,
                                                 &ShardCheck::repeated_keys,
                                                 &ShardCheck::repeated_members,
                                                 &ShardCheck::foreign_keys,
                                                 &ShardCheck::several_pictures};

/// All shards as one, without the faults that are of a whole shard.
ShardCheck sum_of(const std::vector<ShardCheck>& shards) {
  ShardCheck sum;
  for (const ShardCheck& shard : shards) {
    for (const auto count : kShardCounts) sum.*count += shard.*count;
    for (const auto count : kEmbeddingCounts) {
      sum.image.*count += shard.image.*count;
      sum.text.*count += shard.text.*count;
    }
    for (const auto& [side, pictures] : shard.short_sides) sum.short_sides[side] += pictures;
    sum.pictures.add(shard.pictures);
  }
  return sum;
}

std::string describe_shard(const ShardCheck& shard, const std::string& faults) {
  if (shard.samples == 0) {
    return fmt::format("{}: no sample{}", one_line(shard.url), faults.empty() ? "" : ": " + faults);
  }
  return fmt::format("{}: {}, {} usable{}",
                     one_line(shard.url),
                     counted(shard.samples, "sample"),
                     shard.usable == shard.samples ? "all" : with_commas(shard.usable),
                     faults.empty() ? "" : ": " + faults);
}

/// "image embeddings: shape [512], 3,664 rows in files, for 3,664 samples".
void describe_embeddings(const std::string& kind,
                         const EmbeddingCheck& sum,
                         const std::vector<int64_t>& shape,
                         std::vector<std::string>& lines) {
  if (shape.empty()) return;
  const std::string rows = sum.rows > 0 ? counted(sum.rows, "row") + " in files, " : std::string();
  lines.push_back(fmt::format("{} embeddings of shape {}: {}{}",
                              kind,
                              shape_text(shape),
                              rows,
                              counted(sum.found, "sample has one", "samples have one")));
}

/// What to do about rows and keys that do not fit.
void describe_alignment(const ShardCheck& sum, std::vector<std::string>& lines) {
  int64_t odd = sum.foreign_keys;
  for (const EmbeddingCheck* check : {&sum.image, &sum.text})
    odd += check->beyond + check->shared + check->idle;
  if (odd == 0) return;
  lines.push_back("some rows of embeddings do not belong to the samples with their numbers:");
  lines.push_back(
      "    a sample's row is the number in the last digits of its key (--index-width), its file "
      "the one with the shard's number;");
  lines.push_back(
      "    keys of img2dataset have as many such digits as the number of samples in a shard needs: 1 "
      "for up to 10, 2 for up to 100;");
  lines.push_back(
      "    embeddings made from other shards, or in another order, belong to other pictures");
}

/// What is not a fault of a sample, but may surprise.
void describe_pictures(const ShardCheck& sum, std::vector<std::string>& lines) {
  if (sum.no_caption > 0) {
    lines.push_back(counted(sum.no_caption, "sample has", "samples have") +
                    " no caption, which only a CLIP needs");
  }
  for (std::string& line : sum.pictures.describe()) lines.push_back(std::move(line));
  if (sum.several_pictures > 0) {
    lines.push_back(counted(sum.several_pictures, "sample has", "samples have") +
                    " several pictures: of jpg, jpeg, png, webp and jfif, the first is used");
  }
}

constexpr std::array kSplitNames = {"train", "val", "test"};
constexpr int64_t kLeastGroup = 20;
constexpr double kOddRatio = 9;
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

/// The line about one property; empty if its values are divided as chance may divide them. Each value is
/// judged by the logarithm of its likelihood ratio (a G-test): exp(-kOddRatio) is about the probability
/// that a set which was mixed at random gives a line.
std::string judge(const std::string& property, const std::map<std::string, Counts>& values) {
  Counts sums = {};
  double groups = 0;
  for (const auto& [value, counts] : values) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += counts[i];
    if (counts[0] + counts[1] + counts[2] >= kLeastGroup) ++groups;
  }
  const double all = sums[0] + sums[1] + sums[2];
  double largest = kOddRatio + std::log(groups);
  std::string line;
  for (const auto& [value, counts] : values) {
    const double of_value = counts[0] + counts[1] + counts[2];
    if (of_value < kLeastGroup) continue;
    double ratio = 0, farthest = 0, expected_there = 0;
    size_t split = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const double expected = of_value * sums[i] / all;
      if (counts[i] > 0) ratio += counts[i] * std::log(counts[i] / expected);
      const double off = expected > 0 ? std::abs(counts[i] - expected) / std::sqrt(expected) : 0;
      if (off <= farthest) continue;
      farthest = off;
      expected_there = expected;
      split = i;
    }
    if (ratio <= largest) continue;
    largest = ratio;
    line = fmt::format(
        "the splits differ by {}: {} has {} of the {} samples in {}, where a mixed set has about {:.0f}; "
        "`dalle2-train shards make --from SHARDS --out DIR` mixes a set",
        property,
        one_line(value),
        with_commas(static_cast<int64_t>(counts[split])),
        with_commas(static_cast<int64_t>(of_value)),
        kSplitNames[split],
        expected_there);
  }
  return line;
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

std::vector<std::string> describe_check(const CheckReport& report) {
  std::vector<std::string> lines;
  int64_t faultless = 0, bad = 0, without_end = 0, without_image_file = 0, without_text_file = 0;
  for (const ShardCheck& shard : report.shards) {
    const std::string faults = faults_of(shard);
    faultless += faults.empty() ? 1 : 0;
    bad += shard.fault.empty() ? 0 : 1;
    without_end += shard.without_end ? 1 : 0;
    without_image_file += shard.image.fault.empty() ? 0 : 1;
    without_text_file += shard.text.fault.empty() ? 0 : 1;
    // Of a folder's virtual shards only those that have something to tell.
    if (!shard.is_virtual || !faults.empty()) lines.push_back(describe_shard(shard, faults));
    for (const std::string& example : shard.examples) lines.push_back("    " + example);
    if (shard.untold > 0) lines.push_back("    and " + with_commas(shard.untold) + " more");
  }
  const ShardCheck sum = sum_of(report.shards);
  std::string shards = counted(static_cast<int64_t>(report.shards.size()), "shard");
  append_count(shards, faultless, "of them without fault");
  append_count(shards, bad, "absent, damaged or without samples");
  append_count(shards, without_end, "without end marker");
  append_count(shards, without_image_file, "without a readable file of image embeddings");
  append_count(shards, without_text_file, "without a readable file of text embeddings");
  lines.push_back("in all: " + shards);
  lines.push_back(fmt::format("{}, {} usable; shortest side of a picture {} pixels",
                              counted(sum.samples, "sample"),
                              with_commas(sum.usable),
                              sum.narrowest()));
  const std::string faults = faults_of(sum);
  if (!faults.empty()) lines.push_back("faults: " + faults);
  describe_embeddings("image", sum.image, report.image_row_shape, lines);
  describe_embeddings("text", sum.text, report.text_row_shape, lines);
  if (report.unused_files > 0) {
    lines.push_back(fmt::format("{} of {} {} for none of these shards",
                                with_commas(report.unused_files),
                                counted(report.embedding_files, "embedding file"),
                                report.unused_files == 1 ? "is" : "are"));
  }
  describe_alignment(sum, lines);
  describe_pictures(sum, lines);
  lines.insert(lines.end(), report.split_differences.begin(), report.split_differences.end());
  DropLog captions;
  for (ShardCheck shard : report.shards) captions.merge(std::move(shard.captions));
  if (!captions.empty()) lines.push_back(captions.report_all("captions"));
  return lines;
}

}  // namespace dalle2
