// SPDX-License-Identifier: MIT
// NumPy .npy files (format versions 1, 2 and 3).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

enum class NpyType { kFloat16, kFloat32, kFloat64, kInt64, kUint8, kBool };

/// Bytes of one value.
size_t npy_item_size(NpyType type);

/// IEEE half precision bits as float32, exact; NaN payloads are kept.
float float16_to_float32(uint16_t bits);

struct NpyArray {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  std::string bytes;           ///< C order, little endian

  int64_t numel() const;
  /// Values converted to float32.
  std::vector<float> to_float32() const;
  /// Row `row` of the first dimension as float32: numel() / shape[0] values.
  std::vector<float> row_float32(int64_t row) const;
  /// The same into memory of the caller's.
  void copy_row_float32(int64_t row, float* out) const;
};

/// Arrays in Fortran order are turned into C order.
/// @param origin names the file in errors.
/// @throws DataError (magic, version, header, dtype, size)
NpyArray parse_npy(std::string content, const std::string& origin);
NpyArray read_npy(const std::string& path);
/// A float32 array as a version 1 file, and that on disk, whole or not at all.
std::string format_npy_float32(const std::vector<int64_t>& shape, const float* values);
void write_npy_float32(const std::string& path,
                       const std::vector<int64_t>& shape,
                       const float* values);

}  // namespace dalle2
