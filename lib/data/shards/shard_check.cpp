// SPDX-License-Identifier: MIT
#include "data/shards/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
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

/// The embeddings of one kind in one shard, and what their rows say about the way they were counted.
class RowCheck {
 public:
  RowCheck(const SampleEmbeddings& all,
           const std::string& url,
           const SourceOptions& source,
           ShardCheck& check)
      : embeddings_(all), check_(check) {
    try {
      fault_ = embeddings_.open_shard(url, source, check.drops);
    } catch (const NetworkError& error) {
      fault_ = error.what();
      check.unreachable = true;
      check.drops.add(drop::kShardWithoutEmbeddings, fault_);
    }
    if (fault_.empty() && embeddings_.rows() != nullptr)
      taken_.assign(static_cast<size_t>(embeddings_.rows()->rows()), false);
  }

  /// @param name of the sample, for messages
  /// @return true if the sample has an embedding of this kind, or needs none
  bool take(const GroupedSample& sample, const std::string& name, int64_t index_width) {
    if (!fault_.empty()) return false;
    const auto row = row_of_key(sample.key, index_width);
    if (row && *row < std::ssize(taken_)) {
      const auto taken = taken_.begin() + *row;
      if (*taken) {
        ++shared_;
        check_.drops.add(drop::kSharedRow,
                         fmt::format("{}: row {} is another sample's, too", name, *row));
      }
      *taken = true;
      ++found_;
    }
    EmbeddingRow ignored;
    return embeddings_.take(sample, index_width, name, ignored, check_.drops);
  }

  /// After the last sample. @return the samples that may have the embeddings of other pictures
  int64_t misaligned() {
    int64_t idle = 0, behind = 0;  // behind the last row with a sample
    for (int64_t row = 0; row < std::ssize(taken_); ++row) {
      const bool is_idle = !taken_[static_cast<size_t>(row)];
      behind = is_idle ? behind + 1 : 0;
      if (!is_idle || embeddings_.rows()->is_zero(row)) continue;
      ++idle;
      check_.drops.add(drop::kIdleRow, fmt::format("row {} has no sample", row));
    }
    // Samples that were taken out of a shard leave gaps, or were a few last ones. More rows than that
    // behind a shard without gaps are those of other pictures.
    constexpr int64_t kFew = 10;  // a tenth
    const bool has_gaps = std::ranges::count(taken_, false) != behind;
    return found_ > 0 && !has_gaps && idle * kFew > std::ssize(taken_) ? found_ : shared_;
  }

  bool is_by_row() const { return embeddings_.folder() != nullptr; }
  const std::vector<int64_t>& row_shape() const { return embeddings_.row_shape(); }

 private:
  SampleEmbeddings embeddings_;
  ShardCheck& check_;
  std::string fault_;        // why the shard has none
  std::vector<bool> taken_;  // rows of samples, of a folder
  int64_t found_ = 0, shared_ = 0;
};

/// A shard's findings and what is needed to judge them against the others.
struct Findings {
  std::string url;
  ShardCheck check;
  std::vector<std::string> keys;
  std::vector<int64_t> image_row_shape, text_row_shape;
  ShardTraits traits;
};

/// True for a key of digits that begins with the number of another shard.
bool is_foreign(const std::string& key, int64_t shard, int64_t index_width) {
  const std::string base = key.substr(key.rfind('/') + 1);  // all of it without a slash
  const size_t width = static_cast<size_t>(index_width);
  if (shard < 0 || base.size() <= width || !row_of_key(base, index_width)) return false;
  return number_of_digits(base.substr(0, base.size() - width)).value_or(shard) != shard;
}

/// @param name of the sample, for messages
/// @return true if the sample has a picture that can be decoded
bool check_picture(const GroupedSample& sample, const std::string& name, Findings& findings) {
  ShardCheck& check = findings.check;
  const std::string* picture = sample.picture();
  if (picture == nullptr) {
    check.drops.add(drop::kNoPicture, fmt::format("{}: {}", name, no_field_text(sample)));
    return false;
  }
  try {
    const PictureFacts facts = look_at_picture(*picture, name);
    const int64_t side = std::min(facts.width, facts.height);
    ++check.short_sides[side];
    ++check.shapes[100 * side / std::max(facts.width, facts.height)];
    check.pictures.add(facts);
    findings.traits.add(sample, findings.url, side, facts.transparent);
  } catch (const DataError& error) {
    check.drops.add(drop::kBrokenPicture, error.what());
    return false;
  }
  if (const std::string several = sample.several_pictures(); !several.empty())
    check.drops.add(drop::kSeveralPictures, fmt::format("{} {}", name, several));
  return true;
}

/// @return true if the sample has a caption
bool check_caption(const GroupedSample& sample,
                   const std::string& name,
                   const std::string& encoding,
                   ShardCheck& check) {
  const CaptionText caption = caption_of(sample, encoding);
  if (sample.find({"txt"}) != nullptr)
    note_caption(caption, {.caption_encoding = encoding}, check.url + ": " + name, check.captions);
  return !caption.text.empty();
}

void check_samples(SampleReader& reader,
                   const CheckOptions& options,
                   RowCheck& images,
                   RowCheck& texts,
                   Findings& findings) {
  ShardCheck& check = findings.check;
  const bool is_by_row = images.is_by_row() || texts.is_by_row();
  const int64_t shard = shard_number(findings.url), width = options.index_width;
  int64_t foreign = 0;
  while (const auto sample = reader.next()) {
    ++check.samples;
    findings.keys.push_back(sample->key);
    const std::string file = picture_of(findings.url, sample->key);
    const std::string& name = file.empty() ? sample->key : file;
    if (is_by_row && is_foreign(sample->key, shard, width)) {
      ++foreign;
      check.drops.add(drop::kForeignKey, name + ": the key has another shard's number");
    }
    const bool caption = check_caption(*sample, name, options.caption_encoding, check);
    const bool picture = check_picture(*sample, name, findings);
    const bool image = images.take(*sample, name, width), text = texts.take(*sample, name, width);
    if (!picture || !image || !text) continue;
    ++check.usable;
    if (!caption) ++check.no_caption;
  }
  check.misaligned = std::max({foreign, images.misaligned(), texts.misaligned()});
  check.passed_over = reader.passed_over();
  if (!reader.has_end_marker())
    check.drops.add(drop::kShardWithoutEnd, "without its end marker: it may have been cut");
  if (!reader.unread().empty()) check.drops.add(drop::kUnreadData, reader.unread());
  if (check.samples == 0) check.lose(drop::kEmptyShard, "the tar holds none");
}

Findings check_shard(const std::string& url,
                     const SampleEmbeddings& image,
                     const SampleEmbeddings& text,
                     const CheckOptions& options) {
  Findings findings;
  ShardCheck& check = findings.check;
  findings.url = url;
  check.url = shown_shard(url);
  check.is_virtual = is_picture_shard(url);
  const SourceOptions source{.allow_pipe = options.allow_pipe};
  RowCheck images(image, url, source, check), texts(text, url, source, check);
  try {
    const auto warn = [&](const std::string& warning) {
      check.drops.add(drop::kRepeatedMember, warning);
    };
    const auto reader = open_shard(url, warn, source, options.caption_encoding);
    check_samples(*reader, options, images, texts, findings);
  } catch (const DataError& error) {
    check.lose(is_absent_file(url) ? drop::kAbsentShard : drop::kDamagedShard, error.what());
  } catch (const NetworkError& error) {
    const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
    const bool is_absent = refused != nullptr && refused->says_absent();
    check.unreachable = check.unreachable || !is_absent;
    check.lose(is_absent ? drop::kAbsentShard : drop::kUnreachableShard, error.what());
  }
  findings.image_row_shape = images.row_shape();
  findings.text_row_shape = texts.row_shape();
  return findings;
}

/// Embeddings inside the shards: those of a shard must have the shape that most shards have.
/// @return this shape
std::vector<int64_t> compare_shapes(std::vector<Findings>& all,
                                    std::vector<int64_t> Findings::*shape) {
  std::map<std::vector<int64_t>, int64_t> shards;
  for (const Findings& findings : all)
    if (!(findings.*shape).empty()) ++shards[findings.*shape];
  if (shards.empty()) return {};
  const auto most =
      std::ranges::max_element(shards, {}, [](const auto& each) { return each.second; });
  for (Findings& findings : all) {
    if ((findings.*shape).empty() || findings.*shape == most->first) continue;
    findings.check.usable = findings.check.no_caption = 0;
    findings.check.drops.add(drop::kWrongEmbeddingShape,
                             fmt::format("embeddings of shape {}, those of most shards have {}",
                                         shape_text(findings.*shape),
                                         shape_text(most->first)));
  }
  return most->first;
}

void note_repeated_keys(std::vector<Findings>& all) {
  std::unordered_set<std::string> seen;
  for (Findings& findings : all) {
    for (const std::string& key : findings.keys) {
      if (!seen.insert(key).second)
        findings.check.drops.add(drop::kRepeatedKey, key + ": the key was there before");
    }
  }
}

void add(const ShardCheck& shard, CheckReport& report) {
  report.samples += shard.samples;
  report.usable += shard.usable;
  report.no_caption += shard.no_caption;
  report.misaligned += shard.misaligned;
  report.passed_over += shard.passed_over;
  report.lost += shard.is_lost ? 1 : 0;
  report.unreachable = report.unreachable || shard.unreachable;
  report.drops.merge(DropLog(shard.drops));
  report.captions.merge(DropLog(shard.captions));
  report.pictures.add(shard.pictures);
}

/// What to do about rows and keys that do not fit.
void describe_alignment(const CheckReport& report, std::vector<std::string>& lines) {
  int64_t odd = 0;
  for (const char* reason : {drop::kForeignKey, drop::kSharedRow, drop::kIdleRow})
    odd += report.drops.count(reason);
  for (const char* reason : {drop::kNoImageEmbedding, drop::kNoTextEmbedding})
    odd += report.embedding_files > 0 ? report.drops.count(reason) : 0;
  if (odd == 0) return;
  lines.insert(
      lines.end(),
      {"some rows of embeddings do not belong to the samples with their numbers:",
       "    a sample's row is the number in the last digits of its key (--index-width), its file "
       "the one with the shard's number;",
       "    keys of img2dataset have as many such digits as the number of samples in a shard needs: 1 "
       "for up to 10, 2 for up to 100;",
       "    embeddings made from other shards, or in another order, belong to other pictures"});
}

constexpr std::array kSplitNames = {"train", "val", "test"};
constexpr double kLeastGroup = 20, kOddRatio = 9;
using SplitCounts = std::array<double, kSplitNames.size()>;

double total(const SplitCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

/// The top folder of a picture; empty without one.
std::string top_folder(const GroupedSample& sample, const std::string& shard_url) {
  std::string path;
  if (is_picture_shard(shard_url)) {
    path = sample.key;
  } else if (const std::string* notes = sample.find({"json"})) {
    path = text_member(parse_untrusted_object(*notes), "source");
  }
  return path.find('/') == path.npos ? "" : path.substr(0, path.find('/'));
}

/// The line about one property; empty if its values are divided as chance may divide them. Each value, and
/// all together, are judged by the logarithm of their likelihood ratio (a G-test): exp(-kOddRatio) is about
/// the probability that a set which was mixed at random gives a line.
std::string judge(const std::string& property, const std::map<std::string, SplitCounts>& values) {
  SplitCounts sums = {};
  double groups = 0;
  for (const auto& [value, counts] : values) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += counts[i];
    if (total(counts) >= kLeastGroup) ++groups;
  }
  double largest = 0, of_all = 0;
  std::string line;
  for (const auto& [value, counts] : values) {
    const double of_value = total(counts);
    if (of_value < kLeastGroup) continue;
    SplitCounts expected = sums, off = {};
    double ratio = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      expected[i] *= of_value / total(sums);
      if (counts[i] > 0) ratio += counts[i] * std::log(counts[i] / expected[i]);
      if (expected[i] > 0) off[i] = std::abs(counts[i] - expected[i]) / std::sqrt(expected[i]);
    }
    of_all += ratio;
    if (ratio <= largest) continue;
    largest = ratio;
    const auto split = static_cast<size_t>(std::ranges::max_element(off) - off.begin());
    line = fmt::format(
        "the splits differ by {}: {} has {:.0f} of the {:.0f} samples in {}, where a mixed set has about "
        "{:.0f}; `dalle2-train shards make --from SHARDS --out DIR` mixes a set that has no folders to keep "
        "together",
        property,
        one_line(value),
        counts[split],
        of_value,
        kSplitNames[split],
        expected[split]);
  }
  // The tail of chi square (Laurent and Massart, 2000); few samples in a split raise its mean by a quarter.
  const double freedom = 1.25 * (kSplitNames.size() - 1) * (groups - 1);
  const double odd = freedom + 2 * std::sqrt(std::max(freedom, 0.0) * kOddRatio) + 2 * kOddRatio;
  return largest > kOddRatio + std::log(groups) || 2 * of_all > odd ? line : "";
}

}  // namespace

void ShardCheck::lose(const char* reason, const std::string& text) {
  is_lost = true;
  drops.add(reason, text);
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
  std::ranges::sort(urls);
  return urls;
}

CheckReport check_shards(const CheckOptions& options,
                         const std::function<void(int64_t done, int64_t total)>& progress) {
  check_caption_encoding(options.caption_encoding, "--caption-encoding");
  using Kind = SampleEmbeddings::Kind;
  const auto open =
      [&](Kind kind, const std::optional<std::string>& folder, bool in_tar, const char* option) {
        const bool has_folder = folder && !folder->empty();
        SampleEmbeddings embeddings(kind, has_folder || in_tar, {});
        if (has_folder)
          embeddings.open(*folder, options.shard_width, {.allow_pipe = options.allow_pipe}, option);
        return embeddings;
      };
  const SampleEmbeddings image = open(Kind::kImage,
                                      options.img_embeddings_url,
                                      options.embeddings_in_tar,
                                      "--img-embeddings"),
                         text = open(
                             Kind::kText, options.text_embeddings_url, false, "--text-embeddings");
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
  note_repeated_keys(all);
  report.image_row_shape = compare_shapes(all, &Findings::image_row_shape);
  report.text_row_shape = compare_shapes(all, &Findings::text_row_shape);
  for (const SampleEmbeddings* embeddings : {&image, &text}) {
    if (embeddings->folder() == nullptr) continue;
    int64_t unused = embeddings->folder()->file_count();  // 0 where they cannot be listed
    report.embedding_files += unused;
    for (const std::string& url : options.urls)
      unused -= embeddings->folder()->has(shard_number(url)) ? 1 : 0;
    report.unused_files += std::max<int64_t>(unused, 0);
  }
  std::vector<ShardTraits> traits;
  for (Findings& findings : all) {
    add(findings.check, report);
    report.shards.push_back(std::move(findings.check));
    traits.push_back(std::move(findings.traits));
  }
  report.split_differences = compare_splits(traits);
  return report;
}

void ShardTraits::add(const GroupedSample& sample,
                      const std::string& shard_url,
                      int64_t short_side,
                      bool is_transparent) {
  if (const std::string folder = top_folder(sample, shard_url); !folder.empty())
    ++values["top folder"][folder];
  if (const std::string* label = sample.find({"cls"})) ++values["class"][*label];
  const auto side = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(short_side, 1)));
  ++values["shorter side"][fmt::format("{} to {} pixels", side, 2 * side - 1)];
  ++values["transparency"][is_transparent ? "transparent" : "opaque"];
  pictures.insert(std::hash<std::string>{}(*sample.picture()));
}

std::vector<std::string> compare_splits(const std::vector<ShardTraits>& shards) {
  const int64_t count = std::ssize(shards);
  const auto splits = split_positions(first_splits(count), count, /*seed=*/0);
  if (!splits) return {};
  std::map<std::string, std::map<std::string, SplitCounts>> properties;
  SplitCounts sizes = {}, shards_of = {};
  std::map<uint64_t, size_t> first_split;
  int64_t repeated = 0;
  for (size_t split = 0; split < kSplitNames.size(); ++split) {
    for (const uint32_t shard : *std::array{&splits->train, &splits->val, &splits->test}[split]) {
      for (const auto& [property, values] : shards[shard].values) {
        for (const auto& [value, samples] : values)
          properties[property][value][split] += static_cast<double>(samples);
      }
      ++shards_of[split];
      sizes[split] += static_cast<double>(shards[shard].pictures.size());
      for (const uint64_t picture : shards[shard].pictures)
        repeated += first_split.emplace(picture, split).first->second != split ? 1 : 0;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [property, values] : properties) {
    if (std::string line = judge(property, values); !line.empty()) lines.push_back(line);
  }
  constexpr double kOddSize = 3;
  for (size_t split = 0; split < kSplitNames.size(); ++split) {
    const double wanted = total(sizes) * shards_of[split] / total(shards_of);
    if (total(sizes) < kLeastGroup || sizes[split] * kOddSize > wanted) continue;
    lines.push_back(fmt::format(
        "the shards have very different sizes: {:.0f} samples for training, {:.0f} for validation, {:.0f} for "
        "the test",
        sizes[0],
        sizes[1],
        sizes[2]));
    break;
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
  int64_t faultless = 0, shortest = 0;
  for (const ShardCheck& shard : report.shards) {
    const bool is_faultless = shard.drops.empty();
    faultless += is_faultless ? 1 : 0;
    if (const auto side = shard.short_sides.begin(); side != shard.short_sides.end())
      shortest = shortest == 0 ? side->first : std::min(shortest, side->first);
    // Of a folder's virtual shards only those that have something to tell.
    if (shard.is_virtual && is_faultless) continue;
    const bool is_whole = shard.usable == shard.samples;
    lines.push_back(fmt::format("{}: {}{}{}",
                                one_line(shard.url),
                                counted(shard.samples, "sample"),
                                shard.samples == 0 ? ""
                                : is_whole         ? ", all usable"
                                                   : ", " + with_commas(shard.usable) + " usable",
                                is_faultless ? "" : ": " + describe_drops(shard.drops.counts())));
    for (const std::string& example : shard.drops.examples()) lines.push_back("    " + example);
  }
  lines.push_back(fmt::format("in all: {}, {} of them without fault",
                              counted(std::ssize(report.shards), "shard"),
                              with_commas(faultless)));
  lines.push_back(fmt::format("{}, {} usable; shortest side of a picture {} pixels",
                              counted(report.samples, "sample"),
                              with_commas(report.usable),
                              shortest));
  if (!report.drops.empty()) lines.push_back(describe_drops(report.drops.counts()));
  for (const auto& [kind, shape] :
       {std::pair("image", &report.image_row_shape), std::pair("text", &report.text_row_shape)}) {
    if (!shape->empty())
      lines.push_back(fmt::format("{} embeddings of shape {}", kind, shape_text(*shape)));
  }
  if (report.unused_files > 0) {
    lines.push_back(fmt::format("{} of {} {} for none of these shards",
                                with_commas(report.unused_files),
                                counted(report.embedding_files, "embedding file"),
                                report.unused_files == 1 ? "is" : "are"));
  }
  describe_alignment(report, lines);
  if (report.no_caption > 0) {
    lines.push_back(counted(report.no_caption, "sample has", "samples have") +
                    " no caption, which only a CLIP needs");
  }
  for (std::string& line : report.pictures.describe()) lines.push_back(std::move(line));
  if (report.passed_over > 0) {
    lines.push_back(
        counted(report.passed_over, "member of the tars is", "members of the tars are") +
        " not read: names without extension, or no files");
  }
  lines.insert(lines.end(), report.split_differences.begin(), report.split_differences.end());
  if (!report.captions.empty()) lines.push_back(report.captions.report_all("captions"));
  return lines;
}

}  // namespace dalle2
