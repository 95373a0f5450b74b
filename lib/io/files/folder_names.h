// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// Whether something lies at a path, and whether that is a folder. Not if the system does not say, as of
/// a list of urls that is longer than a path.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// The names in a folder of this machine, in no order; none of one that is not there or cannot be
/// opened. @throws DataError if the listing breaks off: what it gave is not the whole
std::vector<std::string> names_in_folder(const std::string& folder);

/// The paths of what lies in a folder of this machine and is no folder, by name.
/// @throws DataError if the folder is not there, or cannot be read to its end
std::vector<std::string> files_in_folder(const std::string& folder);

/// The names in a folder of this machine that end so (".tar"), sorted; none of a folder that is not
/// there. @throws DataError if the folder cannot be read to its end
std::vector<std::string> names_ending(const std::string& folder, const std::string& ending);

/// ".jpg" of "a.JPG": the extension in small letters.
std::string lower_extension(const std::filesystem::path& path);

/// Whether a file is a picture by its name: .jpg, .jpeg, .jfif, .png, .webp, in small or large letters.
bool is_picture_name(const std::filesystem::path& path);

/// Whether files with this lower_extension() are pictures of a kind that is not read, such as .bmp.
bool is_unread_extension(const std::string& extension);
/// Whether they may hold data beside pictures: captions, embeddings, shards.
bool is_data_extension(const std::string& extension);

/// The absolute path of a folder without links, dots and a slash at its end. The folder need not exist. @return empty if the system does
/// not say, e.g. for links that lead in a circle
std::filesystem::path canonical_folder(const std::filesystem::path& folder);

/// Whether `path` is `folder` or lies below it. Both are canonical; nothing is in an empty path.
bool is_in_folder(const std::filesystem::path& path, const std::filesystem::path& folder);

/// Beside the pictures that `sample` drew: all of them in one. It is not one of them.
inline constexpr const char* kSheetFile = "sheet.png";

/// In a run's data_path: its record, the folders in which it draws (`results`: a VAE, unless it has another), and that of what
/// waits to be sent.
inline constexpr const char* kRecordFile = "run.json";
inline constexpr const char* kImagesFolder = "images";
inline constexpr const char* kResultsFolder = "results";
inline constexpr const char* kOutboxFolder = "outbox";

/// Beside shards: what `shards embed` made their embeddings with, and `shards encode` their latents.
inline constexpr const char* kEmbeddingsManifest = "embeddings.json";
inline constexpr const char* kLatentsManifest = "latents.json";

/// Arrays that belong to the shards of a folder by their number, such as img_emb/img_emb_000012.npy: in its folders and in those below
/// them, but not where other shards lie. @return paths from the folder on, sorted
std::vector<std::string> numbered_arrays(const std::string& folder);
/// The number of such an array; none for another name.
std::optional<int64_t> number_of_array(const std::string& path);

/// Names for a message, those that number a series as its first and last: "000000.tar to
/// 000003.tar, notes.tar", and after the first few how many more. @param names sorted
std::string short_list(const std::vector<std::string>& names);

}  // namespace dalle2
