// SPDX-License-Identifier: MIT
// `shards make --from SHARDS`: the samples of a set, dealt into new shards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/shards/deal.h"

namespace dalle2 {

struct MixReport {
  int64_t samples = 0, shards = 0;
  int64_t arrays = 0;       ///< files of rows (embeddings) that were dealt with the samples
  int64_t absent_rows = 0;  ///< of them, which became zero: the mark of an absent embedding
  std::vector<std::string> removed;  ///< names of shards and arrays that were there
  bool stopped = false;              ///< by a signal: OUT is as it was
};

/// Deals the samples of the uncompressed tars in `from` anew, with all their members. A sample's path
/// for deal() is the `source` in its .json, else its shard and key. Rows of the .npy files that belong
/// to the shards by their number are dealt in the same way; .json files beside the shards are copied.
/// `options.index_width` holds for the old keys and the new ones. All is written beside what OUT holds (NewShards), and takes its place at the end.
/// @throws ConfigError as NewShards and deal(); DataError for a shard that cannot be read to its end
MixReport mix_shards(const std::string& from,
                     const std::string& out,
                     const DealOptions& options,
                     bool overwrite = false,
                     const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace dalle2
