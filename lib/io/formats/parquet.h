// SPDX-License-Identifier: MIT
// Columns of texts in Parquet files, read by Arrow. Arrow is large and few need it: what names its symbols
// is a shared object beside the program, which is loaded with the first such file.
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

inline constexpr const char* kParquetModule = "libdalle2_parquet.so";
/// The function of the module, a ReadParquetTexts: see function_of_module().
inline constexpr const char* kReadParquetTexts = "dalle2_read_parquet_texts";

/// Appends the texts of a column, a row each; of a null an empty one.
/// @param fault what is wrong with the file or its column; empty if nothing is
using ReadParquetTexts = void(const std::string& path,
                              const std::string& column,
                              std::vector<std::string>& texts,
                              std::string& fault);

}  // namespace dalle2
