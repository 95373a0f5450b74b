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

}  // namespace

void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files) {
  const Numbers numbers = numbers_of(files), other_numbers = numbers_of(other_files);
  if (has_unnumbered(numbers) || has_unnumbered(other_numbers)) return;
  const auto first_alone = [](const Numbers& all, const Numbers& others) {
    const auto alone = std::find_if(all.begin(), all.end(), [&](const auto& number) {
      return std::find(others.begin(), others.end(), number) == others.end();
    });
    return static_cast<size_t>(alone - all.begin());
  };
  if (sorted(numbers) != sorted(other_numbers)) {
    const bool is_one = files.size() == 1 || other_files.size() == 1;
    const bool shares_none = std::none_of(numbers.begin(), numbers.end(), [&](const auto& number) {
      return std::find(other_numbers.begin(), other_numbers.end(), number) != other_numbers.end();
    });
    if (is_one || shares_none) return;  // numbered otherwise: only the totals can be compared
    const size_t here = first_alone(other_numbers, numbers);
    const bool is_here = here < other_files.size();
    throw DataError(
        "{}: '{}' has a number that no file of {} has, though others have: files are paired by the number at "
        "the end of their names\n  Fetch or make the file that is missing, or remove this one.",
        is_here ? other_key : key,
        public_url(is_here ? other_files[here].path
                           : files[first_alone(numbers, other_numbers)].path),
        is_here ? key : other_key);
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
