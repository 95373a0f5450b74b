// SPDX-License-Identifier: MIT
// The samples of a prior run: image and text embeddings, row by row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/prior/prior_run_config.h"
#include "data/embeddings/embedding_table.h"
#include "data/loader/drop_log.h"

namespace dalle2 {

/// Rows that are used, all of them finite. Tensors share their first dimension, which is 0 if none
/// of the rows was usable.
struct PriorBatch {
  at::Tensor image_embeds;    ///< [B, D] float32
  at::Tensor text_embeds;     ///< [B, D]
  at::Tensor text_encodings;  ///< [B, L, D]; undefined without
  int64_t rows = 0;           ///< taken of the split, the dropped ones too
  DropLog drops;              ///< rows with NaN or infinity

  int64_t size() const { return rows - drops.total(); }
};

class PriorDataset {
 public:
  /// Reads the headers of all files.
  /// @throws DataError for what EmbeddingTable refuses, folders of different lengths, splits that
  /// leave nothing to train on
  PriorDataset(const PriorDataConfig& config, const PriorConfig& prior);

  /// Rows of "train", "val" or "test": int(share * n) each, the rest is for test, as in the
  /// reference.
  int64_t rows(const std::string& split) const;
  /// Up to `count` rows of a split from row `begin` of it on. @return none past its end
  std::optional<PriorBatch> batch(const std::string& split, int64_t begin, int64_t count) const;

 private:
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range range(const std::string& split) const;
  void check_lengths(const PriorDataConfig& config) const;

  EmbeddingTable images_, texts_;
  std::unique_ptr<EmbeddingTable> encodings_;  // null without
  int64_t train_end_ = 0, val_end_ = 0, end_ = 0;
};

}  // namespace dalle2
