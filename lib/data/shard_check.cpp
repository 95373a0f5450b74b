// SPDX-License-Identifier: MIT
#include "data/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/embeddings.h"
#include "data/shard_reader.h"
#include "data/shards.h"
#include "io/image.h"

namespace dalle2 {
namespace {

constexpr size_t kMostExamples = 5;

/// Where embeddings of one kind come from; none without a source.
struct Source {
  std::string kind;
  std::optional<EmbeddingFolder> folder;
  bool in_tar = false;

  bool exists() const { return folder.has_value() || in_tar; }
};

/// A row seen, by shape: which one most have is known only at the end.
using ShapeCounts = std::map<std::vector<int64_t>, int64_t>;

/// A shard's findings and what is needed to judge them against the others.
struct Findings {
  ShardCheck check;
  std::vector<std::string> keys;
  ShapeCounts image_shapes, text_shapes;
};

void example(ShardCheck& check, const std::string& text) {
  if (check.examples.size() < kMostExamples) check.examples.push_back(printable(text));
}

/// The server answered that there is no such file.
bool is_absent(const NetworkError& error) {
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  return refused != nullptr && (refused->status() == 404 || refused->status() == 410);
}

/// Checks the rows of one kind, shard by shard.
class EmbeddingChecker {
 public:
  EmbeddingChecker(const Source& source,
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
      rows_ = source.folder->load(shard);
      result.row_shape = rows_->row_shape();
      result.rows = rows_->rows();
      taken_.assign(static_cast<size_t>(rows_->rows()), false);
    } catch (const DataError& error) {
      result.fault = error.what();
    } catch (const NetworkError& error) {
      result.fault = error.what();
      check.unreachable = !is_absent(error);
    }
  }

  /// @return true if the sample has an embedding of this kind, or needs none
  bool check(const GroupedSample& sample) {
    if (!source_.exists()) return true;
    if (!result_.fault.empty()) return false;
    EmbeddingRow row;
    if (!find(sample, row)) return false;
    ++result_.found;
    ++shapes_[row.rows->row_shape()];
    if (row.rows->is_zero(row.row)) {
      ++result_.zero;
      example(check_, fmt::format("{}: its {} embedding is all zero", sample.key, source_.kind));
      return false;
    }
    std::vector<float> values(static_cast<size_t>(row.rows->row_numel()));
    row.rows->copy_row(row.row, values.data());
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
      ++result_.not_finite;
      example(check_,
              fmt::format("{}: its {} embedding has NaN or infinity", sample.key, source_.kind));
      return false;
    }
    return true;
  }

  /// After the last sample: what the rows say about the way they were counted.
  void finish() {
    if (!source_.folder || !rows_) return;
    for (int64_t row = 0; row < rows_->rows(); ++row) {
      if (!taken_[static_cast<size_t>(row)] && !rows_->is_zero(row)) ++result_.idle;
    }
  }

 private:
  bool find(const GroupedSample& sample, EmbeddingRow& row) {
    std::string reason;
    if (source_.folder) {
      const auto index = row_of_key(sample.key, index_width_);
      if (index && *index < rows_->rows()) {
        row = {rows_, *index};
        const auto taken = taken_.begin() + *index;
        if (*taken) {
          ++result_.shared;
          example(check_, fmt::format("{}: row {} is another sample's, too", sample.key, *index));
        }
        *taken = true;
        return true;
      }
      reason = index
                   ? fmt::format(
                         "row {} of {} rows of {} embeddings", *index, rows_->rows(), source_.kind)
                   : fmt::format("the key does not end in {} digits", index_width_);
    } else {
      const bool image = source_.kind == "image";
      const std::string* content =
          image ? sample.find({"img_emb.npy", "npy"}) : sample.find({"text_emb.npy"});
      try {
        if (content != nullptr) {
          row = parse_embedding(*content, image ? 1 : 2, source_.kind + " embedding");
          return true;
        }
        reason = fmt::format("no {} embedding in the shard", source_.kind);
      } catch (const DataError& error) {
        reason = error.what();
      }
    }
    ++result_.missing;
    example(check_, fmt::format("{}: {}", sample.key, reason));
    return false;
  }

  const Source& source_;
  int64_t index_width_;
  ShardCheck& check_;
  EmbeddingCheck& result_;
  ShapeCounts& shapes_;
  std::shared_ptr<const EmbeddingRows> rows_;
  std::vector<bool> taken_;  // rows of samples
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

/// @return true if the sample has a picture that can be decoded
bool check_picture(const GroupedSample& sample, ShardCheck& check) {
  const std::string* picture = sample.find({"jpg", "jpeg", "png", "webp"});
  if (picture == nullptr) {
    ++check.no_picture;
    example(check, fmt::format("{}: no field jpg, jpeg, png or webp", sample.key));
    return false;
  }
  try {
    const Image image = decode_image(*picture, sample.key);
    const int64_t side = std::min(image.width, image.height);
    check.narrowest = check.narrowest == 0 ? side : std::min(check.narrowest, side);
    return true;
  } catch (const DataError& error) {
    ++check.broken_pictures;
    example(check, error.what());
    return false;
  }
}

/// @return false for a caption that the loader refuses; one that is absent is none to it
bool check_caption(const GroupedSample& sample, ShardCheck& check) {
  const std::string* caption = sample.find({"txt"});
  if (caption == nullptr) ++check.no_caption;
  if (caption == nullptr || is_utf8(*caption)) return true;
  ++check.broken_captions;
  example(check, fmt::format("{}: its field txt is not UTF-8", sample.key));
  return false;
}

Findings check_shard(const std::string& url,
                     const Source& image,
                     const Source& text,
                     int64_t index_width) {
  Findings findings;
  ShardCheck& check = findings.check;
  check.url = public_url(url);
  EmbeddingChecker images(image, index_width, check, check.image, findings.image_shapes);
  EmbeddingChecker texts(text, index_width, check, check.text, findings.text_shapes);
  const bool embeddings_by_row = image.folder || text.folder;
  const int64_t shard = shard_number(url);
  try {
    const auto reader = open_shard(url, [&](const std::string& warning) {
      ++check.repeated_members;
      example(check, warning);
    });
    while (const auto sample = reader->next()) {
      ++check.samples;
      findings.keys.push_back(sample->key);
      if (embeddings_by_row && is_foreign(sample->key, shard, index_width)) {
        ++check.foreign_keys;
        example(check, fmt::format("{}: the key has another shard's number", sample->key));
      }
      const bool caption = check_caption(*sample, check);
      const bool picture = check_picture(*sample, check);
      const bool image_embedding = images.check(*sample);
      const bool text_embedding = texts.check(*sample);
      if (caption && picture && image_embedding && text_embedding) ++check.usable;
    }
    images.finish();
    texts.finish();
  } catch (const DataError& error) {
    check.fault = error.what();
  } catch (const NetworkError& error) {
    check.fault = error.what();
    check.unreachable = !is_absent(error);
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
      example(check,
              fmt::format("{} embeddings of shape {}, most have {}",
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
        example(findings.check, fmt::format("{}: the key was there before", key));
      } else {
        seen.insert(std::move(key));
      }
    }
  }
}

Source open_source(const char* kind, const std::optional<std::string>& url, bool in_tar) {
  Source source{kind, std::nullopt, false};
  if (url && !url->empty()) {
    source.folder.emplace(*url,
                          kind,
                          /*shard_width=*/6,
                          HttpOptions{},
                          std::string(kind) == "image" ? "--img-embeddings" : "--text-embeddings");
  } else {
    source.in_tar = in_tar;
  }
  return source;
}

/// Runs `work(i)` for i < count on some threads and rethrows the first of their errors.
void in_parallel(size_t count, int64_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < threads; ++i) pool.emplace_back(run);
  run();
  for (std::thread& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

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
    sum += std::max({shard.foreign_keys, shard.image.shared, shard.text.shared});
  }
  return sum;
}

std::vector<std::string> shards_in_folder(const std::string& folder) {
  std::vector<std::string> urls;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".tar") urls.push_back(entry->path().string());
  }
  if (error) throw DataError("{}: the folder cannot be read: {}.", folder, error.message());
  if (urls.empty()) throw DataError("{}: no .tar file is in the folder.", folder);
  std::sort(urls.begin(), urls.end());
  return urls;
}

CheckReport check_shards(const CheckOptions& options,
                         const std::function<void(int64_t done, int64_t total)>& progress) {
  const Source image = open_source("image", options.img_embeddings_url, options.embeddings_in_tar);
  const Source text =
      open_source("text", options.text_embeddings_url, options.text_embeddings_in_tar);
  std::vector<Findings> all(options.urls.size());
  std::mutex mutex;
  int64_t done = 0;
  in_parallel(all.size(), options.threads, [&](size_t i) {
    all[i] = check_shard(options.urls[i], image, text, options.index_width);
    const std::lock_guard lock(mutex);
    ++done;
    if (progress) progress(done, static_cast<int64_t>(all.size()));
  });

  CheckReport report;
  count_repeated_keys(all);
  report.image_row_shape = judge_shapes(all, &Findings::image_shapes, &ShardCheck::image);
  report.text_row_shape = judge_shapes(all, &Findings::text_shapes, &ShardCheck::text);
  for (const Source* source : {&image, &text}) {
    if (!source->folder) continue;
    report.embedding_files += source->folder->file_count();
    int64_t used = 0;
    for (const std::string& url : options.urls)
      used += source->folder->has(shard_number(url)) ? 1 : 0;
    report.unused_files += std::max<int64_t>(source->folder->file_count() - used, 0);
  }
  for (Findings& findings : all) report.shards.push_back(std::move(findings.check));
  return report;
}

}  // namespace dalle2
