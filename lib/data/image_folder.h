// SPDX-License-Identifier: MIT
// Pictures of a folder and the folders below it, shuffled anew each epoch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "config/vae_run_config.h"
#include "data/drop_log.h"
#include "data/preprocess.h"

namespace dalle2 {

/// Pictures in [0, 1]; the first dimension is 0 if none of the files was usable.
struct ImageBatch {
  at::Tensor images;  ///< [B, C, H, W] float32
  int64_t rows = 0;   ///< taken of the epoch, the dropped ones too
  DropLog drops;      ///< files that cannot be read

  int64_t size() const { return images.defined() ? images.size(0) : 0; }
};

class ImageFolder {
 public:
  /// Lists the files: those ending in .jpg, .jpeg, .png or .webp, in the order of their paths below
  /// the folder. Links to folders are followed once.
  /// @param channels of the pictures: 3, or 1 for grey @param seed of the orders and transforms
  /// @throws DataError for a folder that is not there or has no picture, or too few to divide
  ImageFolder(const VaeDataConfig& config, int64_t channels, int64_t seed);

  /// Pictures of "train" or "val": int((1 - valid_frac) n) and the rest of a random division, or all
  /// for both where valid_frac is 0.
  int64_t rows(const std::string& split) const;
  int64_t files() const { return static_cast<int64_t>(paths_.size()); }

  /// Up to `count` pictures from place `begin` of the epoch's order on; those of "val" come in one
  /// order for all epochs. What it reads does not hang on what was read before.
  /// @return none behind the end
  std::optional<ImageBatch> batch(const std::string& split,
                                  int64_t epoch,
                                  int64_t begin,
                                  int64_t count);
  /// Reads that batch in the background, for the next call of batch().
  void read_ahead(const std::string& split, int64_t epoch, int64_t begin, int64_t count);

 private:
  struct Address {
    std::string split;
    int64_t epoch = 0, begin = 0, count = 0;
    bool operator==(const Address&) const = default;
  };
  const std::vector<int64_t>& order_of(const Address& address);
  ImageBatch read(const Address& address, const std::vector<int64_t>& chosen) const;
  std::optional<std::vector<int64_t>> chosen_rows(const Address& address);

  std::string folder_;
  int64_t channels_, seed_;
  Preprocess preprocess_;
  std::vector<std::string> paths_;    // below the folder
  std::vector<int64_t> train_, val_;  // numbers of the paths
  Address ordered_;                   // whose order is in order_
  std::vector<int64_t> order_;
  Address ahead_;
  std::future<ImageBatch> reading_;
};

}  // namespace dalle2
