// SPDX-License-Identifier: MIT
// A folder of pictures and captions, read as if it were shards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/pictures/picture_listing.h"
#include "io/formats/tar.h"

namespace dalle2 {

class FolderCaptions;

/// "jpg", "png" or "webp" by a picture's first bytes; none if they are of no kind we read.
std::optional<std::string> picture_field(const std::string& content);

/// `data.folder`: 30 to 100 virtual shards, more where they would have over 1000 pictures on average. deal() chooses the
/// pictures of each; the result depends on the order and on their names alone.
class PictureShards {
 public:
  /// The listing of a folder, which all who hold it share. @throws as list_pictures()
  static std::shared_ptr<const PictureShards> of(const std::string& folder,
                                                 FolderOrder order = FolderOrder::mixed);
  /// @throws as list_pictures(); ConfigError as deal()
  explicit PictureShards(const std::string& folder, FolderOrder order = FolderOrder::mixed);

  int64_t size() const { return static_cast<int64_t>(shards_.size()); }
  int64_t pictures() const { return static_cast<int64_t>(pictures_.size()); }
  /// @param index in the shard
  const FolderPicture& picture(int64_t shard, int64_t index) const;
  std::string names() const { return hash_of_names(pictures_); }
  /// "folder:ORDER:PATH/000012.1f2e3d4c.tar": the shard's number and a hash of its pictures' names, so
  /// that shards of other pictures have other names.
  std::string url(int64_t shard) const;
  std::vector<std::string> urls() const;
  /// A picture and its caption after the other. Offsets count pictures.
  /// @param first_picture of the shard
  /// @param caption_encoding as FolderCaptions::of() takes it
  std::unique_ptr<MemberSource> open(
      int64_t shard,
      uint64_t first_picture,
      const std::string& caption_encoding = CaptionReadConfig().caption_encoding) const;

 private:
  std::string folder_;
  std::shared_ptr<const FolderCaptions> captions_;
  FolderOrder order_;
  std::vector<FolderPicture> pictures_;      // in the order of their paths
  std::vector<std::vector<size_t>> shards_;  // numbers of pictures
};

/// Whether a url is one of PictureShards.
bool is_picture_shard(const std::string& url);
/// The listing of such a url's folder, none for another url. As long as somebody holds it, the folder is not
/// listed again.
std::shared_ptr<const PictureShards> listing_of(const std::string& url);
/// For messages: the folder and number of such a url's shard, of another url public_url().
std::string shown_shard(const std::string& url);
/// For messages: the file of a sample of such a url; empty for another url.
std::string picture_of(const std::string& url, const std::string& key);
/// Opens such a url. @throws DataError if the pictures are others by now
std::unique_ptr<MemberSource> open_picture_shard(const std::string& url,
                                                 uint64_t first_picture,
                                                 const std::string& caption_encoding);

}  // namespace dalle2
