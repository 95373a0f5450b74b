// SPDX-License-Identifier: MIT
// The rows of a folder of .npy files as one table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/formats/npy.h"

namespace dalle2 {

/// All `**/*.npy` below a folder, in the order of their paths, rows after each other. Rows are
/// read as they are asked for; what is held is the shape of each file.
class EmbeddingTable {
 public:
  /// @param key where the folder is named, for messages
  /// @param row_shape of a row; 0 stands for any length
  /// @throws DataError for a folder without such files, a damaged file, other rows than expected
  EmbeddingTable(const std::string& folder,
                 const std::string& key,
                 const std::vector<int64_t>& row_shape);

  int64_t rows() const { return rows_; }
  const std::vector<int64_t>& row_shape() const { return row_shape_; }

  /// Rows [first, first + count), over the ends of files. @return [count, ...] float32
  /// @throws DataError for a file that has changed or cannot be read
  at::Tensor read(int64_t first, int64_t count) const;

 private:
  struct File {
    std::string path;
    NpyLayout layout;
    int64_t first_row = 0;
  };

  void add_file(const std::string& path, const std::vector<int64_t>& wanted);
  std::vector<float> read_rows(const File& file, int64_t first, int64_t count) const;

  std::string key_;
  std::vector<File> files_;
  std::vector<int64_t> row_shape_;
  int64_t row_numel_ = 0;
  int64_t rows_ = 0;
};

}  // namespace dalle2
