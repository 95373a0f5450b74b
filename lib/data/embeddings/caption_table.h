// SPDX-License-Identifier: MIT
// Captions by row, and the pictures that shards hold beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/embeddings/embedding_table.h"
#include "data/loader/drop_log.h"

namespace dalle2 {

/// A file, or all below a folder in the order of their paths: `.txt` with one caption a line, `.jsonl`
/// with an object with "caption" a line, `.parquet` with a column "caption", or `.tar` whose samples are
/// rows. The captions are held in memory.
class CaptionTable {
 public:
  /// @param key where the path is named, for messages
  /// @param caption_key of the objects, or name of the column @param read tells how, and what is told of
  /// @throws DataError for a path without such files, or with several sorts of them; for a line that
  /// is no such object, a tar that is packed or damaged, a Parquet file that is damaged, lacks the
  /// column, or cannot be read by this build
  CaptionTable(const std::string& path,
               const std::string& key,
               const std::string& caption_key = "caption",
               const CaptionReadConfig& read = {});

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  /// In the order of the rows.
  const std::vector<TableFile>& files() const { return files_; }
  /// Empty: the row has none.
  const std::string& caption(int64_t row) const { return at(row).caption; }
  /// Whether rows may have pictures: they are samples of shards.
  bool has_pictures() const { return has_pictures_; }
  /// The picture's file as it lies in its shard; none if the sample has none. May be called by several
  /// threads. @throws DataError if it cannot be read
  std::optional<std::string> picture(int64_t row) const;

 private:
  struct Row {
    std::string caption = {};
    size_t file = 0;                              // its place in files_
    std::optional<uint64_t> picture_offset = {};  // in the tar
  };
  const Row& at(int64_t row) const { return rows_.at(static_cast<size_t>(row)); }
  void add_lines(const std::string& path, bool is_json);
  void add_parquet(const std::string& path);
  void add_tar(const std::string& path);

  void add_row(Row row, const std::string& bytes);

  std::string key_, caption_key_;
  CaptionReadConfig read_;
  DropLog notes_;
  bool has_pictures_ = false;
  std::vector<TableFile> files_;
  std::vector<Row> rows_;
};

}  // namespace dalle2
