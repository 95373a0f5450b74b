// SPDX-License-Identifier: MIT
#include "data/embeddings/embedding_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "data/shards/shards.h"

namespace dalle2 {

EmbeddingSource open_embedding_source(const std::string& kind,
                                      const std::optional<std::string>& url,
                                      bool in_tar,
                                      int64_t shard_width,
                                      const SourceOptions& options) {
  EmbeddingSource source{kind, std::nullopt, false, options};
  if (url && !url->empty()) {
    source.folder.emplace(*url,
                          kind,
                          shard_width,
                          options,
                          kind == "image" ? "--img-embeddings" : "--text-embeddings");
  } else {
    source.in_tar = in_tar;
  }
  return source;
}

EmbeddingChecker::EmbeddingChecker(const EmbeddingSource& source,
                                   int64_t index_width,
                                   ShardCheck& check,
                                   EmbeddingCheck& result,
                                   ShapeCounts& shapes)
    : source_(source), index_width_(index_width), check_(check), result_(result), shapes_(shapes) {
  if (!source.folder) return;
  const int64_t shard = shard_number(check.url);
  if (!source.folder->has(shard)) {
    result.fault = fmt::format(
        "no {} embedding file for it in {}", source.kind, public_url(source.folder->folder()));
    return;
  }
  try {
    rows_ = source.folder->load(shard, source.options);
    result.row_shape = rows_->row_shape();
    result.rows = rows_->rows();
    taken_.assign(static_cast<size_t>(rows_->rows()), false);
  } catch (const DataError& error) {
    result.fault = error.what();
  } catch (const NetworkError& error) {
    result.fault = error.what();
    check.unreachable = true;
  }
}

bool EmbeddingChecker::check(const GroupedSample& sample) {
  if (!source_.exists()) return true;
  if (!result_.fault.empty()) return false;
  EmbeddingRow row;
  if (!find(sample, row)) return false;
  ++result_.found;
  ++shapes_[row.rows->row_shape()];
  if (row.rows->is_zero(row.row)) {
    ++result_.zero;
    check_.add_example(fmt::format("{}: its {} embedding is all zero", sample.key, source_.kind));
    return false;
  }
  if (!row.rows->is_finite(row.row)) {
    ++result_.not_finite;
    check_.add_example(
        fmt::format("{}: its {} embedding has NaN or infinity", sample.key, source_.kind));
    return false;
  }
  return true;
}

void EmbeddingChecker::finish() {
  if (!source_.folder || !rows_) return;
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

bool EmbeddingChecker::find(const GroupedSample& sample, EmbeddingRow& row) {
  const std::string fault =
      source_.folder ? find_in_folder(sample, row) : find_in_shard(sample, row);
  if (fault.empty()) return true;
  ++result_.missing;
  check_.add_example(fmt::format("{}: {}", sample.key, fault));
  return false;
}

/// @return why there is none; empty if there is
std::string EmbeddingChecker::find_in_folder(const GroupedSample& sample, EmbeddingRow& row) {
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

/// @return why there is none; empty if there is
std::string EmbeddingChecker::find_in_shard(const GroupedSample& sample, EmbeddingRow& row) const {
  const std::string* content =
      source_.kind == "image" ? sample.find({"img_emb.npy", "npy"}) : sample.find({"text_emb.npy"});
  if (content == nullptr) return fmt::format("no {} embedding in the shard", source_.kind);
  try {
    row = parse_embedding(*content, source_.kind, source_.kind + " embedding");
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

}  // namespace dalle2
