// SPDX-License-Identifier: MIT
// NumPy .npy files (format versions 1 and 2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

enum class NpyType { kFloat16, kFloat32, kFloat64, kInt64, kUint8, kBool };

struct NpyArray {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;
  std::string bytes;  ///< C order, little endian

  int64_t numel() const;
  /// Values converted to float32.
  std::vector<float> to_float32() const;
};

/// @param origin names the file in errors. @throws DataError (magic, header, dtype, order, size)
NpyArray parse_npy(const std::string& content, const std::string& origin);
NpyArray read_npy(const std::string& path);
/// A float32 array as a version 1 file, and that on disk, whole or not at all.
std::string format_npy_float32(const std::vector<int64_t>& shape, const float* values);
void write_npy_float32(const std::string& path, const std::vector<int64_t>& shape, const float* values);

}  // namespace dalle2
