// SPDX-License-Identifier: MIT
// The rows of a folder of .npy files as one table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/formats/npy.h"

namespace dalle2 {

/// All `**/*.npy` below a folder, in the order of their paths, rows after each other. A folder in S3
/// ("s3://bucket/folder") or behind a web page that links its files is read by parts; of it there are
/// the files right in it. Rows are read as they are asked for; what is held is the shape of each file,
/// and the last part that was fetched. Not for several threads at once.
class EmbeddingTable {
 public:
  /// @param key where the folder is named, for messages
  /// @param row_shape of a row; 0 stands for any length
  /// @throws DataError for a folder without such files, a damaged file, other rows than expected;
  /// NetworkError, ConfigError for a place that cannot be listed
  EmbeddingTable(const std::string& folder,
                 const std::string& key,
                 const std::vector<int64_t>& row_shape);

  int64_t rows() const { return rows_; }
  const std::vector<int64_t>& row_shape() const { return row_shape_; }

  /// Rows [first, first + count), over the ends of files. @return [count, ...] float32
  /// @throws DataError for a file that has changed or cannot be read, NetworkError, StoppedError
  at::Tensor read(int64_t first, int64_t count) const;

 private:
  struct File {
    std::string path;  // or url
    NpyLayout layout;
    int64_t first_row = 0;
    uint64_t size = 0;  // bytes
  };
  /// What was fetched of a remote file, of which more rows are likely to be asked for.
  struct Fetched {
    const File* file = nullptr;
    uint64_t from = 0;
    std::string bytes = {};
  };

  void add_file(const std::string& path, const std::vector<int64_t>& wanted);
  std::string bytes_of_rows(const File& file, uint64_t from, uint64_t size) const;
  std::vector<float> read_rows(const File& file, int64_t first, int64_t count) const;

  std::string key_;
  std::vector<File> files_;
  std::vector<int64_t> row_shape_;
  int64_t row_numel_ = 0;
  int64_t rows_ = 0;
  mutable Fetched fetched_;
};

}  // namespace dalle2
