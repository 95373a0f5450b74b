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
  std::vector<std::string> lost;  ///< links that are a picture or a .txt by name, and lead nowhere
};

enum class Tars { kPassOver, kRead };

/// The pictures of a folder and of those below it that this user may read, as walk_data() walks them. What
/// cannot be read is warned of: a tar that ends early gives the pictures before its end.
/// @throws DataError if there are none, or the folder cannot be read
PictureListing list_pictures(const std::filesystem::path& folder, Tars tars);

/// One warning that names the links, or nothing if there are none.
void warn_of_lost_links(const std::string& folder, const std::vector<std::string>& links);

/// A hash of the names of pictures.
std::string hash_of_names(const std::vector<FolderPicture>& pictures);

/// The content. @throws DataError if it cannot be read, or is larger than the largest member of a tar
std::string read_picture(const FolderPicture& picture);
/// The same of a file.
std::string read_picture_file(const std::filesystem::path& path);

/// Whether an entry is a link whose target does not exist or cannot be reached.
bool is_lost_link(const std::filesystem::path& path);

}  // namespace dalle2
