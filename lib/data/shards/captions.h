// SPDX-License-Identifier: MIT
// Where the captions of pictures are: in the samples of shards, and beside the pictures of a folder.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/untrusted_json.h"
#include "config/shared/shard_data_config.h"
#include "data/loader/drop_log.h"
#include "data/pictures/preprocess.h"
#include "io/formats/webdataset.h"
#include "io/text/caption_text.h"

namespace dalle2 {

/// The text of a key; empty if it is absent or no text, or if `object` is no object.
std::string text_member(const Json& object, const char* key);

/// The caption of a sample, its field txt.
CaptionText caption_of(const GroupedSample& sample, const std::string& encoding);
/// What `lines` makes of a caption. @param random draws one of several lines
std::string chosen_lines(std::string text, CaptionLines lines, const RandomBits& random);
/// Notes what is to be told of a caption that is not as most are. @param where names its sample
void note_caption(const CaptionText& caption,
                  const CaptionReadConfig& read,
                  const std::string& where,
                  DropLog& notes);

/// Whether captions are read from a file of this name: .txt, .caption or .json, in small or large letters,
/// metadata.jsonl or metadata.csv.
bool is_caption_name(const std::filesystem::path& path);

/// Captions of the pictures of a folder. A file of the same name comes first, then the tables of the
/// picture's folder and of those above it, up to the top: metadata.jsonl, metadata.csv, or else the only
/// .jsonl. May be asked by several threads.
class FolderCaptions {
 public:
  /// The bytes of a caption, without its last line ends; none if there is none. @throws DataError for a file that cannot be read
  /// @param source the picture's path below the top
  /// @param encoding of JSON that is not UTF-8, the same in every call; other files are as they are
  std::optional<std::string> of(const std::filesystem::path& picture,
                                const std::filesystem::path& source,
                                const std::string& encoding) const;

 private:
  using Table = std::map<std::string, std::string>;  // captions by path below the folder
  /// The file as UTF-8. @throws DataError for one that is neither UTF-8 nor of the encoding
  std::string json_of(const std::filesystem::path& file, const std::string& encoding) const;
  Table read_table(const std::filesystem::path& folder, const std::string& encoding) const;
  const Table& table_of(const std::filesystem::path& folder, const std::string& encoding) const;

  mutable std::mutex mutex_;
  mutable std::map<std::filesystem::path, Table> tables_;
  mutable std::atomic<bool> told_of_encoding_ = false;
};

}  // namespace dalle2
