// SPDX-License-Identifier: MIT
// Embeddings that belong to the samples: .npy files beside the shards, one a shard and one row a
// sample, or .npy fields inside the shards.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/shards/url_patterns.h"
#include "io/files/folder_names.h"
#include "io/formats/npy.h"
#include "io/formats/webdataset.h"
#include "io/streams/url_source.h"

namespace dalle2 {

/// In kEmbeddingsManifest: the CLIP, by clip_sha256().
inline constexpr const char* kClipOfEmbeddings = "clip_sha256";
/// In kEmbeddingsManifest and kLatentsManifest: how the pictures were read, keys of the section `data`.
inline constexpr std::array kReadingKeys = {"ground", "apply_exif", "range"};

/// The object in a manifest; an empty one if there is none. @throws DataError for another content
nlohmann::ordered_json read_manifest(const std::string& path);
/// Its kClipOfEmbeddings; empty if it does not say.
std::string clip_of_manifest(const std::string& path);

/// The path of kEmbeddingsManifest, if `shards embed` made the folder of embeddings at `url`. Its rows follow one another as the
/// samples do that were embedded; for an EmbeddingFolder the digits of a sample's key would have to be its row.
std::optional<std::string> embed_manifest_of(const std::string& url);

/// The same, whatever the folder is called now.
std::optional<std::string> embed_manifest_beside(const std::string& url);

/// The rows of one file. Rows stay as stored until they are copied.
class EmbeddingRows {
 public:
  /// @param array [rows, d], [rows, length, d] or [rows, c, h, w] of float16, float32 or float64
  /// @throws DataError for another shape or type; `origin` names it
  EmbeddingRows(NpyArray array, const std::string& origin);

  int64_t rows() const { return array_.shape[0]; }
  /// [d], [length, d] or [c, h, w].
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  int64_t row_numel() const { return row_numel_; }
  /// True if every value of the row is zero, which marks a sample without an embedding.
  bool is_zero(int64_t row) const;
  /// False if a value of the row is NaN or infinite.
  bool is_finite(int64_t row) const;
  /// @param out room for row_numel() floats
  void copy_row(int64_t row, float* out) const { array_.copy_row_float32(row, out); }

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

/// A folder of `<prefix>_<digits>.npy`, the digits being the number of the shard; here, in S3 or
/// behind a web page that links them. Or a url with `{}` for that number.
class EmbeddingFolder {
 public:
  /// Lists the folder and reads the shape of its first file that can be read; of a url with `{}`
  /// only if its place can be listed.
  /// @param kind "image" or "text", for messages and for the axes of a row: 1 or 2
  /// @param shard_width digits of `{}`
  /// @param key where the folder is named, for messages; empty: the config's key of the kind
  /// @param width that rows should have: of the first files one of that width is preferred
  /// @throws DataError if no such files are there, none can be read, or they are of two prefixes;
  /// NetworkError
  EmbeddingFolder(const std::string& folder,
                  std::string kind,
                  int64_t shard_width = 6,
                  const SourceOptions& source = {},
                  const std::string& key = "",
                  std::optional<int64_t> width = {});

  const std::string& folder() const { return folder_; }
  int64_t file_count() const { return static_cast<int64_t>(urls_.size()); }
  /// True if there is a file for the shard, or may be one.
  bool has(int64_t shard) const { return numbered_ ? shard >= 0 : urls_.contains(shard); }
  std::string url(int64_t shard) const;
  /// The file that row_shape() is from.
  const std::string& shape_file() const { return shape_file_; }
  /// "12 files for shards 0 to 11", or the url with `{}`.
  std::string describe() const;
  /// Shape of a row: [d] or [length, d]; empty if no file was read.
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  /// @throws DataError (absent, unreadable, damaged, another shape than [rows, ...]), NetworkError
  std::shared_ptr<const EmbeddingRows> load(int64_t shard, const SourceOptions& source = {}) const;

 private:
  void add_files(const HttpOptions& http);
  void find_row_shape(std::optional<int64_t> width, const SourceOptions& source);

  std::string folder_, kind_, key_, shape_file_;
  std::map<int64_t, std::string> urls_;
  std::optional<UrlTemplate> numbered_;  // of a place that cannot be listed
  std::vector<int64_t> row_shape_;
};

/// Row of a sample: the last `index_width` characters of its key. @return none if they are no number
std::optional<int64_t> row_of_key(const std::string& key, int64_t index_width);

/// An embedding stored with its sample. A leading axis of length 1 is dropped.
/// @param content a .npy file; @param kind "image" or "text": rows of 1 or 2 axes
/// @throws DataError
EmbeddingRow parse_embedding(const std::string& content,
                             const std::string& kind,
                             const std::string& origin);

/// The image or the text embeddings of the samples, or their latents: where they come from, and those of the open
/// shard. What does not fit is reported to a DropLog and costs the sample or the shard.
class SampleEmbeddings {
 public:
  enum class Kind { kImage, kText, kLatent };

  /// What a kind is called: in messages, by the config, in the shards, and as reasons of a drop.
  struct Words {
    const char *name, *key, *field, *none, *zero, *width_key;
  };

  /// @param width that the model takes, none for any
  SampleEmbeddings(Kind kind, bool needed, std::optional<int64_t> width);

  /// Proves at the start what would else show as an empty epoch: that there are files, that they
  /// are for these shards, and that they have the model's width.
  /// @throws ConfigError, DataError
  void open(const ShardDataConfig& config, const LoaderOptions& options);
  /// Takes those of a folder, or of a url with `{}`. @param key that names it @throws as EmbeddingFolder
  void open(const std::string& folder,
            int64_t shard_width,
            const SourceOptions& source,
            const std::string& key = "");
  /// Null: inside the shards, or not needed.
  const EmbeddingFolder* folder() const { return folder_.get(); }
  /// Of the open shard; null without a folder.
  const EmbeddingRows* rows() const { return rows_.get(); }
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  /// The embeddings of the next shard. @return why there are none for it; empty if there are
  /// @throws NetworkError
  std::string open_shard(const std::string& url, const SourceOptions& source, DropLog& drops);
  /// The row of a sample of the open shard. @return false if it has none, or one of another shape
  bool take(const GroupedSample& sample,
            int64_t index_width,
            const std::string& where,
            EmbeddingRow& row,
            DropLog& drops);

 private:
  bool take_from_folder(const std::string& key,
                        int64_t index_width,
                        const std::string& where,
                        EmbeddingRow& row,
                        DropLog& drops) const;
  bool take_from_sample(const GroupedSample& sample,
                        const std::string& where,
                        EmbeddingRow& row,
                        DropLog& drops);
  void check_coverage(const LoaderOptions& options) const;
  std::string check_shape(const std::vector<int64_t>& shape,
                          const std::string& where,
                          DropLog& drops);

  const Kind kind_;
  const bool needed_;
  const std::optional<int64_t> width_;
  const Words& words_;
  std::shared_ptr<const EmbeddingFolder> folder_;  // shared by copies; none: inside the shards
  std::shared_ptr<const EmbeddingRows> rows_;
  std::vector<int64_t> row_shape_;  // empty until the first was seen
};

}  // namespace dalle2
