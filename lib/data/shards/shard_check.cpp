// SPDX-License-Identifier: MIT
#include "data/shards/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "data/in_parallel.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shards.h"
#include "io/files/walk_folder.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

constexpr size_t kMostExamples = 5;

/// Where embeddings of one kind come from; none without a source.
struct EmbeddingSource {
  std::string kind;  ///< "image" or "text"
  SourceOptions options;
  std::optional<EmbeddingFolder> folder = {};
  bool in_tar = false;  ///< image embeddings alone

  bool exists() const { return folder.has_value() || in_tar; }
  /// @throws DataError for a folder that cannot be right, ConfigError, NetworkError
  void open(const std::optional<std::string>& url, int64_t shard_width, const char* option) {
    if (url && !url->empty()) folder.emplace(*url, kind, shard_width, options, option);
  }
};

/// Rows seen, by shape: which one most have is known only at the end.
using ShapeCounts = std::map<std::vector<int64_t>, int64_t>;

/// Checks the embeddings of one kind against the samples of a shard. What it is given outlives it.
class EmbeddingChecker {
 public:
  EmbeddingChecker(const EmbeddingSource& source,
                   int64_t index_width,
                   ShardCheck& check,
                   EmbeddingCheck& result,
                   ShapeCounts& shapes)
      : source_(source),
        index_width_(index_width),
        check_(check),
        result_(result),
        shapes_(shapes) {
    if (!source.folder) return;
    const int64_t shard = shard_number(check.url);
    if (!source.folder->has(shard)) {
      result.fault = fmt::format(
          "no {} embedding file for it in {}", source.kind, public_url(source.folder->folder()));
      return;
    }
    try {
      rows_ = source.folder->load(shard, source.options);
      result.rows = rows_->rows();
      taken_.assign(static_cast<size_t>(rows_->rows()), false);
    } catch (const DataError& error) {
      result.fault = error.what();
    } catch (const NetworkError& error) {
      result.fault = error.what();
      check.unreachable = true;
    }
  }

  /// @return true if the sample has an embedding of this kind, or needs none
  bool check(const GroupedSample& sample) {
    if (!source_.exists()) return true;
    if (!result_.fault.empty()) return false;
    EmbeddingRow row;
    std::string fault = source_.folder ? find_in_folder(sample, row) : find_in_shard(sample, row);
    if (!fault.empty()) {
      ++result_.missing;
    } else {
      ++result_.found;
      ++shapes_[row.rows->row_shape()];
      if (row.rows->is_zero(row.row)) {
        ++result_.zero;
        fault = fmt::format("its {} embedding is all zero", source_.kind);
      } else if (!row.rows->is_finite(row.row)) {
        ++result_.not_finite;
        fault = fmt::format("its {} embedding has NaN or infinity", source_.kind);
      }
    }
    if (fault.empty()) return true;
    check_.add_example(fmt::format("{}: {}", sample.key, fault));
    return false;
  }

  /// After the last sample: what the rows say about the way they were counted.
  void finish() {
    if (!rows_) return;
    int64_t samples_rows = 0, behind = 0;  // rows with a sample; rows up to the last of them
    for (int64_t row = 0; row < rows_->rows(); ++row) {
      const bool taken = taken_[static_cast<size_t>(row)];
      if (taken) behind = row + 1;
      samples_rows += taken ? 1 : 0;
      if (!taken && !rows_->is_zero(row)) ++result_.idle;
    }
    // Samples that were taken out of a shard leave gaps, or were a few last ones. More rows than that
    // behind a shard without gaps are those of other pictures.
    constexpr int64_t kFew = 10;  // a tenth
    const bool has_gaps = samples_rows != behind;
    if (!has_gaps && behind > 0 && result_.idle * kFew > rows_->rows()) {
      result_.surplus = result_.idle;
    }
  }

 private:
  /// @return why there is none; empty if there is
  std::string find_in_folder(const GroupedSample& sample, EmbeddingRow& row) {
    const auto index = row_of_key(sample.key, index_width_);
    if (!index) return fmt::format("the key does not end in {}", counted(index_width_, "digit"));
    if (*index >= rows_->rows()) {
      ++result_.beyond;
      return fmt::format("no row {} among its shard's {} of {} embeddings",
                         *index,
                         counted(rows_->rows(), "row"),
                         source_.kind);
    }
    row = {rows_, *index};
    const auto taken = taken_.begin() + *index;
    if (*taken) {
      ++result_.shared;
      check_.add_example(fmt::format("{}: row {} is another sample's, too", sample.key, *index));
    }
    *taken = true;
    return "";
  }

  /// @return as find_in_folder()
  std::string find_in_shard(const GroupedSample& sample, EmbeddingRow& row) const {
    const std::string* content = sample.find({"img_emb.npy", "npy"});
    if (content == nullptr) return fmt::format("no {} embedding in the shard", source_.kind);
    try {
      row = parse_embedding(*content, source_.kind, source_.kind + " embedding");
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  }

  const EmbeddingSource& source_;
  const int64_t index_width_;
  ShardCheck& check_;
  EmbeddingCheck& result_;
  ShapeCounts& shapes_;
  std::shared_ptr<const EmbeddingRows> rows_;  // of a folder
  std::vector<bool> taken_;                    // rows of samples
};

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

/// @return true if the sample has a caption
bool check_caption(const GroupedSample& sample,
                   const std::string& name,
                   const std::string& encoding,
                   ShardCheck& check) {
  const CaptionReadConfig read{.caption_encoding = encoding};
  const CaptionText caption = caption_of(sample, read.caption_encoding);
  if (sample.find({"txt"}) != nullptr)
    note_caption(caption, read, check.url + ": " + name, check.captions);
  return !caption.text.empty();
}

/// What is wrong with the shard as a whole shows after its last sample.
void check_end(const SampleReader& reader, ShardCheck& check) {
  check.without_end = !reader.has_end_marker();
  check.unread = reader.unread();
  check.passed_over = reader.passed_over();
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
    const auto reader =
        open_shard(url, warn, {.allow_pipe = options.allow_pipe}, options.caption_encoding);
    while (const auto sample = reader->next()) {
      ++check.samples;
      findings.keys.push_back(sample->key);
      if (embeddings_by_row && is_foreign(sample->key, shard, index_width)) {
        ++check.foreign_keys;
        check.add_example(fmt::format("{}: the key has another shard's number", sample->key));
      }
      const std::string file = picture_of(url, sample->key);
      const std::string& name = file.empty() ? sample->key : file;
      const bool caption = check_caption(*sample, name, options.caption_encoding, check);
      const bool picture = check_picture(*sample, name, findings);
      const bool image_embedding = images.check(*sample);
      const bool text_embedding = texts.check(*sample);
      if (!picture || !image_embedding || !text_embedding) continue;
      ++check.usable;
      if (!caption) ++check.no_caption;
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

}  // namespace

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
  check_caption_encoding(options.caption_encoding, "--caption-encoding");
  const SourceOptions access{.allow_pipe = options.allow_pipe};
  EmbeddingSource image{"image", access}, text{"text", access};
  image.open(options.img_embeddings_url, options.shard_width, "--img-embeddings");
  image.in_tar = !image.folder && options.embeddings_in_tar;
  text.open(options.text_embeddings_url, options.shard_width, "--text-embeddings");
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

/// A count, and what it is called in a list of faults; null: it is no fault. {} stands for the kind.
template <class Check>
struct Counted {
  int64_t Check::*count;
  const char *one = nullptr, *many = nullptr;
};
constexpr Counted<EmbeddingCheck> kEmbeddingCounts[] = {
    {&EmbeddingCheck::missing, "without {} embedding", "without {} embedding"},
    {&EmbeddingCheck::zero, "zero {} embedding", "zero {} embeddings"},
    {&EmbeddingCheck::not_finite, "{} embedding not finite", "{} embeddings not finite"},
    {&EmbeddingCheck::wrong_shape,
     "{} embedding of another shape",
     "{} embeddings of another shape"},
    {&EmbeddingCheck::shared, "shares a row of {} embeddings", "share a row of {} embeddings"},
    {&EmbeddingCheck::idle, "{} embedding without a sample", "{} embeddings without a sample"},
    {&EmbeddingCheck::found},
    {&EmbeddingCheck::rows},
    {&EmbeddingCheck::beyond}};
constexpr Counted<ShardCheck> kShardCounts[] = {
    {&ShardCheck::no_picture, "without picture", "without picture"},
    {&ShardCheck::broken_pictures, "broken picture", "broken pictures"},
    {&ShardCheck::repeated_keys, "repeated key", "repeated keys"},
    {&ShardCheck::repeated_members, "repeated member", "repeated members"},
    {&ShardCheck::foreign_keys,
     "key with another shard's number",
     "keys with another shard's number"},
    {&ShardCheck::samples},
    {&ShardCheck::usable},
    {&ShardCheck::no_caption},
    {&ShardCheck::several_pictures},
    {&ShardCheck::passed_over}};

template <class Check>
void append_counts(std::string& text,
                   const Check& check,
                   std::span<const Counted<Check>> counts,
                   const char* kind = "") {
  for (const auto& [count, one, many] : counts) {
    if (one == nullptr) continue;
    append_count(text,
                 check.*count,
                 fmt::format(fmt::runtime(one), kind),
                 fmt::format(fmt::runtime(many), kind));
  }
}

std::string faults_of(const ShardCheck& shard) {
  std::string text = printable(shard.fault);
  append_counts<ShardCheck>(text, shard, kShardCounts);
  if (shard.without_end) append_text(text, "without its end marker: it may have been cut");
  append_text(text, shard.unread);
  append_text(text, printable(shard.image.fault));
  append_counts<EmbeddingCheck>(text, shard.image, kEmbeddingCounts, "image");
  append_text(text, printable(shard.text.fault));
  append_counts<EmbeddingCheck>(text, shard.text, kEmbeddingCounts, "text");
  return text;
}

/// All shards as one, without the faults that are of a whole shard.
ShardCheck sum_of(const std::vector<ShardCheck>& shards) {
  ShardCheck sum;
  for (const ShardCheck& shard : shards) {
    for (const auto& each : kShardCounts) sum.*each.count += shard.*each.count;
    for (const auto& each : kEmbeddingCounts) {
      sum.image.*each.count += shard.image.*each.count;
      sum.text.*each.count += shard.text.*each.count;
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
  if (sum.passed_over > 0) {
    lines.push_back(counted(sum.passed_over, "member of the tars is", "members of the tars are") +
                    " not read: names without extension, or no files");
  }
}

constexpr std::array kSplitNames = {"train", "val", "test"};
constexpr int64_t kLeastGroup = 20;
constexpr double kOddRatio = 9;
using SplitCounts = std::array<double, kSplitNames.size()>;

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
std::string judge(const std::string& property, const std::map<std::string, SplitCounts>& values) {
  SplitCounts sums = {};
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
  std::map<std::string, std::map<std::string, SplitCounts>> properties;
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
