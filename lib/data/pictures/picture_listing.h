// SPDX-License-Identifier: MIT
// The pictures of a folder: files, and members of the tars in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// A file or a member of a plain tar that is a picture by its name.
struct FolderPicture {
  std::filesystem::path path;           ///< of the file, or of the tar
  std::string source;                   ///< below the folder: "cats/tom.jpg", "shard.tar/0001.jpg"
  std::optional<uint64_t> offset = {};  ///< of a member in its tar
};

struct PictureListing {
  std::vector<FolderPicture> pictures;  ///< sorted by `source`
  std::vector<std::string> others;      ///< paths of the other files, captions too
};

enum class Tars { kPassOver, kRead };

/// The pictures of a folder and of those below it that this user may read, as walk_data() walks them. What
/// is not read is reported: links that lead nowhere, files of other kinds, a tar that ends early, which gives
/// the pictures before its end.
/// @throws DataError if there are none, or the folder cannot be read
PictureListing list_pictures(const std::filesystem::path& folder, Tars tars);

std::string hash_of_names(const std::vector<FolderPicture>& pictures);

/// The content. @throws DataError if it cannot be read
std::string read_picture(const FolderPicture& picture);

}  // namespace dalle2
