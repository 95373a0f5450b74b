// SPDX-License-Identifier: MIT
// `shards demo` writes the demo set, `shards score` judges what was drawn of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

struct DemoShardOptions {
  std::string out;     ///< folder, created
  int64_t num = 4000;  ///< pictures in the training shards
  int image_side = 64;
  uint64_t seed = 0;
  bool overwrite = false;  ///< remove the shards and embeddings that the folder holds
};
struct DemoShardReport {
  int64_t shards = 0;  ///< of the training set; numbers 0 to shards - 1
  int64_t held_out = 0;
  std::vector<std::string> removed;  ///< what the folder held, by its name in it
};

/// Writes `out/000000.tar ...` (jpg and txt; keys of 6 digits for the shard and 4 for the row),
/// `out/img_emb/img_emb_000000.npy ...` (row = the last 4 digits of the key), and the held-out
/// combinations, one picture each, as `out/heldout/` with the same layout and `truth.json`, a list
/// of {key, caption, shape, colour, size, place, ground} in the order of the rows, and `captions.txt`,
/// those captions, a line each. There are at least 16 shards, so that the usual splits have each a
/// shard. Same options, same bytes. Shows on a terminal how far it is.
/// @throws ConfigError (fewer pictures than shards, or shards or embeddings that are in the folder
/// already, without `overwrite`), and as AtomicFile
DemoShardReport write_demo_shards(const DemoShardOptions& options);
/// The same, and prints what was written.
void run_shards_demo(const DemoShardOptions& options);

struct DemoScoreCommand {
  std::string drawn_folder;    ///< what `sample` wrote
  std::string heldout_folder;  ///< what `shards demo` wrote
  std::string grid_path;
  bool overwrite = false;  ///< replace a picture that is there
};
/// Prints how many drawings of the held-out combinations are right, and writes the grid "asked for /
/// drawn". @throws DataError
void run_demo_score(const DemoScoreCommand& command);

}  // namespace dalle2
