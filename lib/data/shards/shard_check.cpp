// SPDX-License-Identifier: MIT
#include "data/shards/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
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

void check_caption(const GroupedSample& sample,
                   const std::string& name,
                   const std::string& encoding,
                   ShardCheck& check) {
  const CaptionReadConfig read{.caption_encoding = encoding};
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
      check_caption(*sample, name, options.caption_encoding, check);
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

}  // namespace dalle2
