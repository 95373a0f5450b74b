// SPDX-License-Identifier: MIT
// Where the values of a .npy file lie, to read some of its rows alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/formats/npy.h"

namespace dalle2 {

struct NpyLayout {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  bool fortran_order = false;
  uint64_t data_begin = 0;  ///< bytes in front of the first value
};

/// More than any header takes.
inline constexpr size_t kMostNpyHeader = size_t{1} << 16;

/// @param begin the file, or as much of it as its header takes (kMostNpyHeader bytes will do)
/// @param file_size bytes of the whole file @param origin names it in errors
/// @throws DataError (magic, version, header, dtype, size)
NpyLayout parse_npy_layout(std::string_view begin, uint64_t file_size, const std::string& origin);

}  // namespace dalle2
