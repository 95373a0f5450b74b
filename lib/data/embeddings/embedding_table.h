// SPDX-License-Identifier: MIT
// Files of a folder as one table: its rows, and the order in which an epoch takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/pictures/preprocess.h"
#include "io/formats/npy.h"

namespace dalle2 {

struct RemotePart;

/// Files with one of `extensions` (".npy") in a folder and those below it, in the order of their paths.
/// @param key where the folder is named, for messages
/// @throws DataError for what is no folder, or cannot be read
std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions);

/// A file of a table, or its address, and the rows that it holds.
struct TableFile {
  std::string path;
  int64_t rows = 0;
};

/// Checks two tables whose files pair by number ("img_emb_7.npy", "text_emb_07.npy"): each pair must
/// have equal counts, and both tables the pairs in the same order. Otherwise rows belong to other
/// samples even if the totals agree. Tables with other numbers in their names are not compared.
/// @param key, other_key where the tables are named, for messages
/// @throws DataError for the first pair that is uneven or in another place
void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files);

/// All `**/*.npy` below a folder, in the order of their paths, rows after each other. A folder in S3
/// ("s3://bucket/folder"), of the Hugging Face hub ("hf://owner/name/folder") or behind a web page that
/// links its files is read by parts; of it there are the files right in it. Rows are read as they are
/// asked for; what is held is the shape of each file, and what was fetched last. Not for several
/// threads at once.
class EmbeddingTable {
 public:
  /// @param key where the folder is named, for messages
  /// @param row_shape of a row; 0 stands for any length
  /// @param on_other_width what to do if only the width differs, given the one found; for messages
  /// @throws DataError for a folder without such files, a damaged file, other rows than expected;
  /// NetworkError, ConfigError for a place that cannot be listed
  EmbeddingTable(const std::string& folder,
                 const std::string& key,
                 const std::vector<int64_t>& row_shape,
                 const std::function<std::string(int64_t width)>& on_other_width = {});

  int64_t rows() const { return rows_; }
  const std::vector<int64_t>& row_shape() const { return row_shape_; }

  /// Rows [first, first + count), over the ends of files. @return [count, ...] float32
  /// @throws DataError for a file that has changed or cannot be read, NetworkError, StoppedError
  at::Tensor read(int64_t first, int64_t count) const;
  /// These rows, in this order. @param block_rows of a remote table this many rows are fetched at a time,
  /// and of such blocks the RowOrder::kMixedBlocks last used are held, and those of this call
  /// @return as read() @throws as read()
  at::Tensor gather(const std::vector<int64_t>& rows, int64_t block_rows) const;

  /// In the order of the rows.
  std::vector<TableFile> files() const;
  bool is_remote() const { return is_remote_; }
  /// Bytes of a row, of the file with the widest numbers.
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  struct File {
    std::string path;  // or url
    NpyLayout layout;
    int64_t first_row = 0;
    uint64_t size = 0;       // bytes
    std::string state = {};  // of a remote one, RemotePart
  };
  /// What was fetched of a remote file, of which more rows are likely to be asked for.
  struct Fetched {
    const File* file = nullptr;
    uint64_t from = 0;
    std::string bytes = {};
  };

  /// Of a remote table: rows [number * block_rows, ...).
  struct Block {
    at::Tensor rows;
    int64_t used = 0;  // number of the last gather() that did
  };
  /// The file of this machine that was read last.
  struct Opened {
    const File* file = nullptr;
    std::ifstream stream = {};
  };

  using WidthAdvice = std::function<std::string(int64_t width)>;
  void add_file(const std::string& path,
                const std::vector<int64_t>& wanted,
                const WidthAdvice& on_other_width);
  std::string bytes_of_rows(const File& file, uint64_t from, uint64_t size, uint64_t fetched) const;
  static void check_same_file(const File& file, const RemotePart& part);
  std::string local_bytes(const File& file, uint64_t from, uint64_t size) const;
  std::vector<float> read_rows(const File& file,
                               int64_t first,
                               int64_t count,
                               uint64_t fetched) const;
  at::Tensor read(int64_t first, int64_t count, uint64_t fetched) const;
  const at::Tensor& block(int64_t number, int64_t block_rows) const;
  void drop_blocks() const;

  std::string key_;
  std::vector<File> files_;
  std::vector<int64_t> row_shape_;
  int64_t row_numel_ = 0;
  int64_t rows_ = 0;
  uint64_t row_bytes_ = 0;
  bool is_remote_;
  mutable Fetched fetched_;
  mutable Opened opened_;
  mutable std::map<int64_t, Block> blocks_;  // by number
  mutable int64_t gathers_ = 0;
};

/// A permutation of [0, size), computed for each place alone, with nothing in memory: a Feistel network with a key a round, walked
/// until it is back in range (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains").
class Permutation {
 public:
  /// @param keys of the rounds are drawn from it
  Permutation(int64_t size, SampleRandom keys);
  int64_t operator()(int64_t place) const;
  /// The place of a value.
  int64_t place_of(int64_t value) const;

 private:
  static constexpr size_t kRounds = 8;
  struct Halves {
    uint64_t left, right;
  };
  uint64_t round(uint64_t half, size_t number) const;

  uint64_t size_;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_;
};

/// Blocks of rows in a permuted order, and the rows of each kMixedBlocks of them permuted together. With
/// one block of all rows it is a permutation of the rows.
class RowOrder {
 public:
  /// Blocks whose rows come mixed: as many have to be at hand at a time.
  static constexpr int64_t kMixedBlocks = 16;

  /// @param block_rows at least 1; the last block may have fewer
  RowOrder(int64_t rows, int64_t block_rows, int64_t seed, int64_t epoch);
  /// Those at places [begin, begin + count) of the epoch.
  std::vector<int64_t> rows_at(int64_t begin, int64_t count) const;

 private:
  SampleRandom random(const char* purpose, int64_t ordinal) const;
  int64_t rows_of_group(int64_t group) const;

  int64_t seed_, epoch_;
  int64_t block_rows_, blocks_;
  int64_t short_rows_;  // of the last block
  Permutation block_at_;
  int64_t short_place_;  // of the last block, among the blocks
};

}  // namespace dalle2
