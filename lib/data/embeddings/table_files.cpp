// SPDX-License-Identifier: MIT
#include "data/embeddings/table_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/public_url.h"
#include "io/files/walk_folder.h"

namespace dalle2 {

namespace fs = std::filesystem;

std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw DataError("{}: expected a folder of {} files, got '{}', which is {}",
                    key,
                    fmt::join(extensions, " or "),
                    folder,
                    fs::exists(folder, error) ? "a file" : "not there");
  }
  std::vector<std::string> files;
  const WalkEnd end = walk_folder(folder, Below::kAll, [&](const fs::directory_entry& entry) {
    const std::string extension = entry.path().extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) != extensions.end())
      files.push_back(entry.path().string());
  });
  if (end.error) {
    throw DataError(
        "{}: the folder '{}', or one below it, cannot be read: {}\n"
        "  Make them readable for this user, or name another folder.",
        key,
        folder,
        end.error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

namespace {

/// "7" of "folder/img_emb_7.npy"; "" without a number at the end.
std::string number_of_name(const std::string& path) {
  const std::string stem = fs::path(path.substr(0, path.find('?'))).stem().string();
  return stem.substr(stem.find_last_not_of("0123456789") + 1);
}

}  // namespace

void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files) {
  const auto is_pair = [](const TableFile& a, const TableFile& b) {
    const std::string number = number_of_name(a.path);
    return !number.empty() && number == number_of_name(b.path);
  };
  if (!std::equal(files.begin(), files.end(), other_files.begin(), other_files.end(), is_pair)) {
    return;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].rows == other_files[i].rows) continue;
    throw DataError(
        "{}: '{}' has {} rows, but '{}' ({}) has {}: row n of each must belong to sample n\n"
        "  Make or fetch the file again that is wrong.",
        other_key,
        public_url(other_files[i].path),
        other_files[i].rows,
        public_url(files[i].path),
        key,
        files[i].rows);
  }
}

}  // namespace dalle2
