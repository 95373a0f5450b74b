// SPDX-License-Identifier: MIT
#include "data/embeddings/prior_dataset.h"

#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"

namespace dalle2 {
namespace {

/// [B] bool: the rows without NaN and infinity.
at::Tensor finite_rows(const at::Tensor& rows) {
  return rows.isfinite().flatten(1).all(1);
}

}  // namespace

PriorDataset::PriorDataset(const PriorDataConfig& config, const PriorConfig& prior)
    : images_(config.image_url, "/data/image_url", {prior.image_embed_dim}),
      texts_(config.text_url.value(), "/data/text_url", {prior.image_embed_dim}) {
  if (config.text_encodings_url) {
    encodings_ = std::make_unique<EmbeddingTable>(*config.text_encodings_url,
                                                  "/data/text_encodings_url",
                                                  std::vector<int64_t>{0, prior.image_embed_dim});
  }
  check_lengths(config);
  end_ = std::min(images_.rows(), config.num_data_points);
  const auto share = [&](double part) {
    return static_cast<int64_t>(part * static_cast<double>(end_));
  };
  train_end_ = share(config.splits.train);
  val_end_ = train_end_ + share(config.splits.val);
  if (train_end_ == 0) {
    throw DataError("/data/splits: a share of {} of {} rows leaves nothing to train on",
                    config.splits.train,
                    end_);
  }
}

void PriorDataset::check_lengths(const PriorDataConfig& config) const {
  const auto check = [&](const EmbeddingTable& table, const char* key, const std::string& folder) {
    if (table.rows() == images_.rows()) return;
    throw DataError(
        "{}: '{}' has {} rows and /data/image_url {}: row for row they belong to the same samples",
        key,
        folder,
        table.rows(),
        images_.rows());
  };
  check(texts_, "/data/text_url", *config.text_url);
  if (encodings_) check(*encodings_, "/data/text_encodings_url", *config.text_encodings_url);
}

PriorDataset::Range PriorDataset::range(const std::string& split) const {
  if (split == "train") return {0, train_end_};
  if (split == "val") return {train_end_, val_end_};
  return {val_end_, end_};
}

int64_t PriorDataset::rows(const std::string& split) const {
  const Range rows = range(split);
  return rows.end - rows.begin;
}

std::optional<PriorBatch> PriorDataset::batch(const std::string& split,
                                              int64_t begin,
                                              int64_t count) const {
  const Range rows = range(split);
  const int64_t first = rows.begin + begin;
  if (first >= rows.end) return std::nullopt;
  PriorBatch batch;
  batch.rows = std::min(count, rows.end - first);
  batch.image_embeds = images_.read(first, batch.rows);
  batch.text_embeds = texts_.read(first, batch.rows);
  at::Tensor good = finite_rows(batch.image_embeds) & finite_rows(batch.text_embeds);
  if (encodings_) {
    batch.text_encodings = encodings_->read(first, batch.rows);
    good = good & finite_rows(batch.text_encodings);
  }
  const at::Tensor bad = good.logical_not().nonzero().flatten();  // [B - size()]
  if (bad.numel() == 0) return batch;
  for (int64_t i = 0; i < bad.numel(); ++i) {
    batch.drops.add(drop::kEmbeddingNotFinite,
                    fmt::format("row {}", first + bad[i].item<int64_t>()));
  }
  for (at::Tensor* tensor : {&batch.image_embeds, &batch.text_embeds, &batch.text_encodings}) {
    if (tensor->defined()) *tensor = tensor->index({good});
  }
  return batch;
}

}  // namespace dalle2
