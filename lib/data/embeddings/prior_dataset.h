// SPDX-License-Identifier: MIT
// The samples of a prior run: image and text embeddings, or what a CLIP makes them of, row by row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/prior/prior_run_config.h"
#include "data/embeddings/caption_table.h"
#include "data/embeddings/embedding_table.h"
#include "data/loader/drop_log.h"
#include "data/pictures/preprocess.h"

namespace dalle2 {

/// Rows that are used, all of them finite. Tensors share their first dimension, which is 0 if none
/// of the rows was usable. With captions there are no text embeddings, with pictures no image
/// embeddings.
struct PriorBatch {
  at::Tensor image_embeds;            ///< [B, D] float32
  at::Tensor text_embeds;             ///< [B, D]
  at::Tensor text_encodings;          ///< [B, L, D]; undefined without
  std::vector<std::string> captions;  ///< B
  at::Tensor pictures;                ///< [B, 3, S, S] float32 in [0, 1]
  int64_t rows = 0;                   ///< taken of the split, the dropped ones too
  DropLog drops;                      ///< rows with NaN or infinity, without caption or picture

  int64_t size() const { return rows - drops.total(); }
};

class PriorDataset {
 public:
  /// Reads the headers of all files. @param seed of the order, with shuffle_rows
  /// @param clip how /prior/clip takes pictures; none without a CLIP
  /// @throws DataError for what EmbeddingTable and CaptionTable refuse, folders of different lengths,
  /// splits that leave nothing to train on
  PriorDataset(const PriorDataConfig& config,
               const PriorConfig& prior,
               int64_t seed,
               const std::optional<ClipPreprocessing>& clip = std::nullopt);

  /// Rows of "train", "val" or "test": int(share * n) each, the rest is for test, as in the reference.
  int64_t rows(const std::string& split) const;
  /// Up to `count` rows of a split from place `begin` of the epoch's order on. Only the training rows
  /// of a config with shuffle_rows have another order in each epoch. @return none past its end
  std::optional<PriorBatch> batch(const std::string& split,
                                  int64_t epoch,
                                  int64_t begin,
                                  int64_t count) const;
  /// Rows that the shuffled order keeps near each other (RowOrder); 0 without shuffle_rows.
  int64_t block_rows() const { return block_rows_; }
  /// A hash of the files of embeddings and their rows, and of the number of captions.
  std::string names() const;

 private:
  class RowFaults;
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range range(const std::string& split) const;
  void choose_blocks();
  std::vector<int64_t> rows_of(const std::string& split,
                               int64_t epoch,
                               int64_t begin,
                               int64_t count) const;
  int64_t all_rows() const { return images_ ? images_->rows() : captions_->rows(); }
  void check_lengths(const PriorDataConfig& config) const;
  void read_captions(const std::vector<int64_t>& rows,
                     int64_t epoch,
                     PriorBatch& batch,
                     RowFaults& faults) const;
  void read_pictures(const std::vector<int64_t>& rows, PriorBatch& batch, RowFaults& faults) const;

  std::unique_ptr<EmbeddingTable> images_;             // null: pictures in their place
  std::unique_ptr<EmbeddingTable> texts_, encodings_;  // null without
  std::unique_ptr<CaptionTable> captions_;             // null without a CLIP
  CaptionLines caption_lines_ = CaptionLines::all;
  std::unique_ptr<Preprocess> preprocess_;         // of the pictures
  std::unique_ptr<SmallPictures> small_pictures_;  // beside preprocess_
  int64_t side_ = 0;                               // of the pictures, pixels
  int64_t train_end_ = 0, val_end_ = 0, end_ = 0;
  int64_t seed_, block_rows_ = 0;
};

}  // namespace dalle2
