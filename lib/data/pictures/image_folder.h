// SPDX-License-Identifier: MIT
// Pictures of a folder, of the folders below it and of the tar shards in them, shuffled again each
// epoch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "config/vae/vae_run_config.h"
#include "data/loader/drop_log.h"
#include "data/pictures/picture_listing.h"
#include "data/pictures/preprocess.h"
#include "io/pictures/picture_tally.h"

namespace dalle2 {

/// Pictures in [0, 1]; the first dimension is 0 if none of the files was usable.
struct ImageBatch {
  at::Tensor images;  ///< [B, C, H, W] float32, or for a GPU uint8
  int64_t rows = 0;   ///< taken of the epoch, the dropped ones too
  DropLog drops;      ///< files that cannot be read

  int64_t size() const { return images.defined() ? images.size(0) : 0; }
};

class ImageFolder {
 public:
  /// Lists the pictures, those in tars too, in the order of their paths: list_pictures().
  /// @param channels of the pictures: 3, 1 for grey, or 4 with transparency @param seed of the orders and transforms
  /// @param gpu for which batches are bytes in page-locked memory, of which copy_to_device() makes floats
  /// @throws DataError for a folder that is not there or has no picture, or too few to divide
  ImageFolder(const VaeDataConfig& config,
              int64_t channels,
              int64_t seed,
              std::optional<at::Device> gpu = {});

  /// Pictures of "train" or "val": int((1 - valid_frac) n) and the rest of a random division, or all
  /// for both where valid_frac is 0.
  int64_t rows(const std::string& split) const;
  int64_t files() const { return static_cast<int64_t>(pictures_.size()); }
  std::string names() const { return hash_of_names(pictures_); }

  /// Prepares the first training picture that can be read, of the first thousand. @throws ConfigError
  /// if the preprocessing makes another size of it than image_size; DataError if the folder has no
  /// more, and none can be read
  void check_usable() const;
  /// @throws DataError: none of the training pictures can be read
  [[noreturn]] void throw_nothing_usable() const;

  /// What the first training pictures are like, enough of them to stand for all.
  PictureTally first_pictures() const;

  /// Up to `count` pictures from place `begin` of the epoch's order on; those of "val" come in one
  /// order for all epochs. What it reads does not hang on what was read before.
  /// @return none past the end
  std::optional<ImageBatch> batch(const std::string& split,
                                  int64_t epoch,
                                  int64_t begin,
                                  int64_t count);
  /// Reads that batch in the background, for the next call of batch(); not with num_workers 0.
  void read_ahead(const std::string& split, int64_t epoch, int64_t begin, int64_t count);

 private:
  struct Address {
    std::string split;
    int64_t epoch = 0, begin = 0, count = 0;
    bool operator==(const Address&) const = default;
  };
  const std::vector<int64_t>& order_of(const Address& address);
  /// @throws DataError if the picture cannot be read; ConfigError for another size than image_size
  Image prepared(const Address& address, int64_t number) const;
  ImageBatch read(const Address& address, const std::vector<int64_t>& chosen) const;
  std::optional<std::vector<int64_t>> chosen_rows(const Address& address);

  std::string folder_;
  int64_t channels_, seed_, threads_;
  std::optional<at::Device> gpu_;
  int64_t side_;
  Preprocess preprocess_;
  std::vector<FolderPicture> pictures_;
  std::vector<int64_t> train_, val_;  // numbers of the pictures
  Address ordered_;                   // whose order is in order_
  std::vector<int64_t> order_;
  Address ahead_;
  std::future<ImageBatch> reading_;
};

}  // namespace dalle2
