// SPDX-License-Identifier: MIT
#include "data/shards/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embedding_check.h"
#include "data/in_parallel.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shards.h"
#include "io/files/walk_folder.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

constexpr size_t kMostExamples = 5;

/// A shard's findings and what is needed to judge them against the others.
struct Findings {
  std::string url;
  ShardCheck check;
  std::vector<std::string> keys;
  ShapeCounts image_shapes, text_shapes;
  ShardTraits traits;
};

/// True for a key of digits that begins with the number of another shard.
bool is_foreign(const std::string& key, int64_t shard, int64_t index_width) {
  const size_t slash = key.rfind('/');
  const std::string base = slash == std::string::npos ? key : key.substr(slash + 1);
  const size_t width = static_cast<size_t>(index_width);
  if (shard < 0 || base.size() <= width || base.size() > width + 18 ||
      base.find_first_not_of("0123456789") != std::string::npos) {
    return false;
  }
  return std::stoll(base.substr(0, base.size() - width)) != shard;
}

/// @param name of the sample, for messages
/// @return true if the sample has a picture that can be decoded
bool check_picture(const GroupedSample& sample, const std::string& name, Findings& findings) {
  ShardCheck& check = findings.check;
  const std::string* picture = sample.picture();
  if (picture == nullptr) {
    ++check.no_picture;
    check.add_example(fmt::format("{}: {}", name, no_field_text(sample)));
    return false;
  }
  try {
    const PictureFacts facts = look_at_picture(*picture, name);
    const int64_t side = std::min(facts.width, facts.height);
    ++check.short_sides[side];
    ++check.shapes[100 * side / std::max(facts.width, facts.height)];
    check.pictures.add(facts);
    findings.traits.add(sample, findings.url, side, facts.transparent);
    if (const std::string several = sample.several_pictures(); !several.empty()) {
      ++check.several_pictures;
      check.add_example(fmt::format("{} {}", name, several));
    }
    return true;
  } catch (const DataError& error) {
    ++check.broken_pictures;
    check.add_example(error.what());
    return false;
  }
}

void check_caption(const GroupedSample& sample, const std::string& name, ShardCheck& check) {
  const CaptionReadConfig read;
  CaptionText caption = caption_of(sample, read.caption_encoding);
  if (caption.text.empty()) ++check.no_caption;
  if (sample.find({"txt"}) != nullptr)
    note_caption(caption, read, check.url + ": " + name, check.captions);
}

/// What is wrong with the shard as a whole shows after its last sample.
void check_end(const SampleReader& reader, ShardCheck& check) {
  check.without_end = !reader.has_end_marker();
  check.unread = reader.unread();
  if (check.samples == 0) check.fault = "the tar holds none";
}

Findings check_shard(const std::string& url,
                     const EmbeddingSource& image,
                     const EmbeddingSource& text,
                     const CheckOptions& options) {
  Findings findings;
  ShardCheck& check = findings.check;
  findings.url = url;
  check.url = shown_shard(url);
  check.is_virtual = is_picture_shard(url);
  const int64_t index_width = options.index_width;
  EmbeddingChecker images(image, index_width, check, check.image, findings.image_shapes);
  EmbeddingChecker texts(text, index_width, check, check.text, findings.text_shapes);
  const bool embeddings_by_row = image.folder || text.folder;
  const int64_t shard = shard_number(url);
  try {
    const auto warn = [&](const std::string& warning) {
      ++check.repeated_members;
      check.add_example(warning);
    };
    const auto reader = open_shard(url, warn, {.allow_pipe = options.allow_pipe});
    while (const auto sample = reader->next()) {
      ++check.samples;
      findings.keys.push_back(sample->key);
      if (embeddings_by_row && is_foreign(sample->key, shard, index_width)) {
        ++check.foreign_keys;
        check.add_example(fmt::format("{}: the key has another shard's number", sample->key));
      }
      const std::string file = picture_of(url, sample->key);
      const std::string& name = file.empty() ? sample->key : file;
      check_caption(*sample, name, check);
      const bool picture = check_picture(*sample, name, findings);
      const bool image_embedding = images.check(*sample);
      const bool text_embedding = texts.check(*sample);
      if (picture && image_embedding && text_embedding) ++check.usable;
    }
    images.finish();
    texts.finish();
    check_end(*reader, check);
  } catch (const DataError& error) {
    check.fault = error.what();
  } catch (const HttpStatusError& error) {
    check.fault = error.what();
    check.unreachable = !error.says_absent();
  } catch (const NetworkError& error) {
    check.fault = error.what();
    check.unreachable = true;
  }
  return findings;
}

/// The shape that most rows have; rows of others cannot be in a batch with them.
std::vector<int64_t> judge_shapes(std::vector<Findings>& all,
                                  ShapeCounts Findings::*shapes,
                                  EmbeddingCheck ShardCheck::*result) {
  ShapeCounts sums;
  for (const Findings& findings : all) {
    for (const auto& [shape, count] : findings.*shapes) sums[shape] += count;
  }
  if (sums.empty()) return {};
  const auto most = std::max_element(
      sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (Findings& findings : all) {
    ShardCheck& check = findings.check;
    for (const auto& [shape, count] : findings.*shapes) {
      if (shape == most->first) continue;
      (check.*result).wrong_shape += count;
      check.usable = std::max<int64_t>(check.usable - count, 0);
      check.add_example(fmt::format("{} embeddings of shape {}, most have {}",
                                    count,
                                    shape_text(shape),
                                    shape_text(most->first)));
    }
  }
  return most->first;
}

void count_repeated_keys(std::vector<Findings>& all) {
  std::unordered_set<std::string> seen;
  for (Findings& findings : all) {
    for (std::string& key : findings.keys) {
      if (seen.contains(key)) {
        ++findings.check.repeated_keys;
        findings.check.add_example(fmt::format("{}: the key was there before", key));
      } else {
        seen.insert(std::move(key));
      }
    }
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

void ShardCheck::add_example(const std::string& fault_text) {
  if (examples.size() < kMostExamples) {
    examples.push_back(printable(fault_text));
  } else {
    ++untold;
  }
}

int64_t ShardCheck::narrowest() const {
  return short_sides.empty() ? 0 : short_sides.begin()->first;
}

int64_t CheckReport::samples() const {
  int64_t sum = 0;
  for (const ShardCheck& shard : shards) sum += shard.samples;
  return sum;
}

bool CheckReport::unreachable() const {
  return std::any_of(
      shards.begin(), shards.end(), [](const ShardCheck& shard) { return shard.unreachable; });
}

int64_t CheckReport::usable() const {
  int64_t sum = 0;
  for (const ShardCheck& shard : shards) sum += shard.usable;
  return sum;
}

int64_t CheckReport::misaligned() const {
  int64_t sum = 0;
  for (const ShardCheck& shard : shards) {
    sum += std::max({shard.foreign_keys,
                     shard.image.shared,
                     shard.text.shared,
                     shard.image.surplus > 0 ? shard.image.found : 0,
                     shard.text.surplus > 0 ? shard.text.found : 0});
  }
  return sum;
}

std::vector<std::string> shards_in_folder(const std::string& folder) {
  std::vector<std::string> urls;
  walk_whole_folder(folder, Below::kNothing, [&](const auto& entry) {
    if (entry.path().extension() == ".tar") urls.push_back(entry.path().string());
  });
  if (urls.empty()) {
    throw DataError(
        "{}: found no .tar file in the folder.\n  `dalle2-train shards make` packs pictures into shards.",
        folder);
  }
  std::sort(urls.begin(), urls.end());
  return urls;
}

CheckReport check_shards(const CheckOptions& options,
                         const std::function<void(int64_t done, int64_t total)>& progress) {
  const SourceOptions access{.allow_pipe = options.allow_pipe};
  const EmbeddingSource image = open_embedding_source(
      "image", options.img_embeddings_url, options.embeddings_in_tar, options.shard_width, access);
  const EmbeddingSource text = open_embedding_source("text",
                                                     options.text_embeddings_url,
                                                     options.text_embeddings_in_tar,
                                                     options.shard_width,
                                                     access);
  const auto listing = options.urls.empty() ? nullptr : listing_of(options.urls.front());
  std::vector<Findings> all(options.urls.size());
  std::mutex mutex;
  int64_t done = 0;
  in_parallel(all.size(), options.threads, [&](size_t i) {
    all[i] = check_shard(options.urls[i], image, text, options);
    const std::lock_guard lock(mutex);
    ++done;
    if (progress) progress(done, static_cast<int64_t>(all.size()));
  });

  CheckReport report;
  count_repeated_keys(all);
  report.image_row_shape = judge_shapes(all, &Findings::image_shapes, &ShardCheck::image);
  report.text_row_shape = judge_shapes(all, &Findings::text_shapes, &ShardCheck::text);
  for (const EmbeddingSource* source : {&image, &text}) {
    if (!source->folder) continue;
    report.embedding_files += source->folder->file_count();
    int64_t used = 0;
    for (const std::string& url : options.urls)
      used += source->folder->has(shard_number(url)) ? 1 : 0;
    report.unused_files += std::max<int64_t>(source->folder->file_count() - used, 0);
  }
  std::vector<ShardTraits> traits;
  for (Findings& findings : all) {
    report.shards.push_back(std::move(findings.check));
    traits.push_back(std::move(findings.traits));
  }
  report.split_differences = compare_splits(traits);
  return report;
}

}  // namespace dalle2
