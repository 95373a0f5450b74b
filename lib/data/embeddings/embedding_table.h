// SPDX-License-Identifier: MIT
// The rows of a folder of .npy files as one table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/embeddings/table_files.h"
#include "io/formats/npy.h"

namespace dalle2 {

struct RemotePart;

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

}  // namespace dalle2
