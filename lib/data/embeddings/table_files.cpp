// SPDX-License-Identifier: MIT
#include "data/embeddings/table_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "io/files/folder_names.h"
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
  const WalkEnd end = walk_data(folder, Below::kAll, [&](const fs::directory_entry& entry) {
    const std::string extension = lower_extension(entry.path());
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

/// 7 of "folder/img_emb_7.npy"; none without a number at the end.
std::optional<int64_t> number_of_name(const std::string& path) {
  const std::string stem = fs::path(path.substr(0, path.find('?'))).stem().string();
  return number_of_digits(stem.substr(stem.find_last_not_of("0123456789") + 1));
}

using Numbers = std::vector<std::optional<int64_t>>;

Numbers numbers_of(const std::vector<TableFile>& files) {
  Numbers numbers;
  for (const TableFile& file : files) numbers.push_back(number_of_name(file.path));
  return numbers;
}

bool has_unnumbered(const Numbers& numbers) {
  return std::find(numbers.begin(), numbers.end(), std::nullopt) != numbers.end();
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Whether each file of a number that is on both sides has as many rows on both, there is such a pair, and no number comes twice.
/// @param alone set to the first file without a partner
bool pairs_agree(const std::vector<TableFile>& files,
                 const Numbers& numbers,
                 const std::vector<TableFile>& other_files,
                 const Numbers& other_numbers,
                 const TableFile*& alone) {
  bool has_pair = false;
  for (size_t i = 0; i < files.size(); ++i) {
    if (std::count(numbers.begin(), numbers.end(), numbers[i]) > 1) return false;
    const auto partner = std::find(other_numbers.begin(), other_numbers.end(), numbers[i]);
    if (partner == other_numbers.end()) {
      if (alone == nullptr) alone = &files[i];
      continue;
    }
    has_pair = true;
    if (other_files[static_cast<size_t>(partner - other_numbers.begin())].rows != files[i].rows)
      return false;
  }
  return has_pair;
}

}  // namespace

void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files) {
  const Numbers numbers = numbers_of(files), other_numbers = numbers_of(other_files);
  if (has_unnumbered(numbers) || has_unnumbered(other_numbers)) return;
  if (sorted(numbers) != sorted(other_numbers)) {
    // Numbered or divided otherwise, only the totals can be compared. One file is missing if all pairs agree.
    if (files.size() == 1 || other_files.size() == 1) return;
    const TableFile *alone = nullptr, *other_alone = nullptr;
    const bool agree = pairs_agree(files, numbers, other_files, other_numbers, alone) &&
                       pairs_agree(other_files, other_numbers, files, numbers, other_alone);
    if (!agree || (alone == nullptr && other_alone == nullptr)) return;
    throw DataError(
        "{}: '{}' has a number that no file of {} has, though all others are paired by their numbers\n"
        "  Fetch or make the file that is missing, or remove this one.",
        other_alone != nullptr ? other_key : key,
        public_url((other_alone != nullptr ? other_alone : alone)->path),
        other_alone != nullptr ? key : other_key);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (numbers[i] != other_numbers[i]) {
      throw DataError(
          "{}: the files are in another order than those of {}: file {} by name is '{}' here and "
          "'{}' there\n  Pad the numbers in the names with zeros, to the same width in both.",
          other_key,
          key,
          i + 1,
          public_url(other_files[i].path),
          public_url(files[i].path));
    }
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
