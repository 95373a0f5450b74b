// SPDX-License-Identifier: MIT
// Embeddings that belong to the samples: .npy files beside the shards, one a shard and one row a
// sample, or .npy fields inside the shards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/npy.h"

namespace dalle2 {

/// The rows of one file. Rows stay as stored until they are copied.
class EmbeddingRows {
 public:
  /// @param array [rows, d] or [rows, length, d] of float16, float32 or float64
  /// @throws DataError for another shape or type; `origin` names it
  EmbeddingRows(NpyArray array, const std::string& origin);

  int64_t rows() const { return array_.shape[0]; }
  /// [d] or [length, d].
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  int64_t row_numel() const { return row_numel_; }
  /// True if every value of the row is zero, which marks a sample without an embedding.
  bool is_zero(int64_t row) const;
  /// @param out room for row_numel() floats
  void copy_row(int64_t row, float* out) const;

 private:
  NpyArray array_;
  std::vector<int64_t> row_shape_;
  int64_t row_numel_ = 0;
  size_t item_size_ = 0;
};

/// One row, and what keeps it alive.
struct EmbeddingRow {
  std::shared_ptr<const EmbeddingRows> rows;
  int64_t row = 0;
};

/// A folder of `<prefix>_<digits>.npy`, the digits being the number of the shard.
class EmbeddingFolder {
 public:
  /// Lists the folder and reads the shape of its first file.
  /// @param kind "image" or "text", for messages
  /// @throws DataError if no such files are there, or files of two prefixes
  EmbeddingFolder(const std::string& folder, std::string kind);

  const std::string& folder() const { return folder_; }
  int64_t file_count() const { return static_cast<int64_t>(paths_.size()); }
  bool has(int64_t shard) const { return paths_.contains(shard); }
  const std::string& path(int64_t shard) const { return paths_.at(shard); }
  /// Shard numbers with a file, and the files.
  const std::map<int64_t, std::string>& paths() const { return paths_; }
  /// Shape of a row of the first file: [d] or [length, d].
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  /// @throws DataError (unreadable, damaged, another shape than [rows, ...])
  std::shared_ptr<const EmbeddingRows> load(int64_t shard) const;

 private:
  std::string folder_, kind_;
  std::map<int64_t, std::string> paths_;
  std::vector<int64_t> row_shape_;
};

/// Row of a sample: the last `index_width` characters of its key. @return none if they are no
/// number
std::optional<int64_t> row_of_key(const std::string& key, int64_t index_width);

/// An embedding stored with its sample. A leading axis of length 1 is dropped.
/// @param content a .npy file; @param axes of the row: 1 for image, 2 for text embeddings
EmbeddingRow parse_embedding(const std::string& content, int axes, const std::string& origin);

/// "[77, 768]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace dalle2
