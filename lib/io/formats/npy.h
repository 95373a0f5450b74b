// SPDX-License-Identifier: MIT
// NumPy .npy files (format versions 1, 2 and 3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

enum class NpyType { kFloat16, kFloat32, kFloat64, kInt64, kUint8, kBool };

size_t npy_item_size(NpyType type);

/// IEEE half precision bits as float32, exact; NaN payloads are kept.
float float16_to_float32(uint16_t bits);

struct NpyArray {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  std::string bytes;           ///< C order, little endian

  int64_t numel() const;
  std::vector<float> to_float32() const;
  /// Row `row` of the first dimension as float32, numel() / shape[0] values, into `out`.
  void copy_row_float32(int64_t row, float* out) const;
};

/// Where the values of a file lie, to read some of its rows alone.
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

/// Arrays in Fortran order are turned into C order.
/// @param origin names the file in errors.
/// @throws DataError (magic, version, header, dtype, size)
NpyArray parse_npy(std::string content, const std::string& origin);
NpyArray read_npy(const std::string& path);
/// A version 1 file of values in C order.
std::string format_npy(NpyType type, const std::vector<int64_t>& shape, std::string_view bytes);
/// A float32 array as such a file, and that on disk, whole or not at all.
std::string format_npy_float32(const std::vector<int64_t>& shape, const float* values);
void write_npy_float32(const std::string& path,
                       const std::vector<int64_t>& shape,
                       const float* values);

}  // namespace dalle2
