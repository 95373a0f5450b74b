// SPDX-License-Identifier: MIT
// The files of a table that lies in a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// Files with one of `extensions` (".npy") in a folder and those below it, in the order of their paths.
/// @param key where the folder is named, for messages
/// @throws DataError for what is no folder, or cannot be read
std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions);

/// A file of a table, or its address, and the rows that it holds.
struct TableFile {
  std::string path;
  int64_t rows = 0;
};

/// Checks two tables whose files pair by number ("img_emb_7.npy", "text_emb_07.npy"): each pair must
/// have equal counts, and both tables the pairs in the same order. Otherwise rows belong to other
/// samples even if the totals agree. Tables with other numbers in their names are not compared.
/// @param key, other_key where the tables are named, for messages
/// @throws DataError for the first pair that is uneven or in another place
void check_pairs(const std::string& key,
                 const std::vector<TableFile>& files,
                 const std::string& other_key,
                 const std::vector<TableFile>& other_files);

}  // namespace dalle2
