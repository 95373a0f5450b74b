// SPDX-License-Identifier: MIT
// `shards make`: a folder of pictures with same-named .txt captions becomes tar shards, or the samples
// of a set are dealt into new ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/drop_log.h"
#include "data/shards/deal.h"
#include "io/pictures/picture_tally.h"

namespace dalle2 {

struct PackOptions {
  DealOptions deal = {};           ///< with 0 a shard every split finds shards
  std::optional<Rgb> ground = {};  ///< transparent pictures are laid on it and stored as PNG
  bool need_captions = false;      ///< pictures without a caption are left out, and have no place
  CaptionReadConfig captions = {};
  bool overwrite = false;  ///< replace the shards that are there
};

/// What became of a folder.
struct PackReport {
  struct Skipped {
    std::string path, reason;
  };
  const char* unit = "picture";  ///< "sample" of a set that was mixed
  int64_t found = 0, packed = 0, without_caption = 0, shards = 0;
  int64_t grounded = 0;                           ///< laid on the ground
  PictureTally pictures = {};                     ///< as they are packed
  std::vector<Skipped> skipped = {};              ///< pictures that are in no shard
  DropLog captions = {};                          ///< notes on captions
  std::vector<std::string> lonely_captions = {};  ///< caption files without a picture of their name
  int64_t arrays = 0;       ///< files of rows (embeddings) that were dealt with the samples
  int64_t absent_rows = 0;  ///< of them, which became zero: the mark of an absent embedding
  std::vector<std::string> removed = {};  ///< names of shards and arrays that were there
  bool stopped = false;                   ///< by a signal: OUT is as it was
};

using PackProgress = std::function<void(int64_t done, int64_t total)>;

/// Packs the jpg, jpeg, png and webp files below `from`, as deal() divides them, into OUT/000000.tar and
/// so on. A sample KEY has KEY.jpg (or png, webp, by content), KEY.txt and KEY.json (its source).
/// Pictures that lack a needed caption have no place; the place of one that is broken stays empty,
/// and a shard of which all are broken is not written.
/// All is written beside what OUT holds (NewShards), and takes its place at the end. If no picture can be used, OUT stays as it was.
/// @throws ConfigError (options that cannot hold, shards in OUT), DataError (no pictures,
/// none with a needed caption, folder cannot be read), ResourceError (disk full)
PackReport pack_folder(const std::string& from,
                       const std::string& out,
                       const PackOptions& options,
                       const PackProgress& progress = {});

/// Deals the samples of the uncompressed tars in `from` anew, with all their members. A sample's path
/// for deal() is the `source` in its .json, else its shard and key. Rows of the .npy files that belong
/// to the shards by their number are dealt in the same way; .json files beside the shards are copied.
/// `options.index_width` holds for the old keys and the new ones. All is written beside what OUT holds (NewShards), and takes its place at the end.
/// @throws ConfigError as NewShards and deal(); DataError for a shard that cannot be read to its end
PackReport mix_shards(const std::string& from,
                      const std::string& out,
                      const DealOptions& options,
                      bool overwrite = false,
                      const PackProgress& progress = {});

std::vector<std::string> describe_pack(const PackReport& report);

}  // namespace dalle2
