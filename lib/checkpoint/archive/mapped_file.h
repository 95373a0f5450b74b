// SPDX-License-Identifier: MIT
// A file as memory, read when touched; and one that values are written to first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/files/atomic_file.h"

namespace dalle2 {

/// A private mapping: tensors that lie in it may be written to without changing the file.
class MappedFile {
 public:
  /// @throws DataError naming the path and the reason
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  const uint8_t* data() const { return data_; }
  /// The caller has checked the range.
  std::string_view bytes(uint64_t offset, uint64_t size) const {
    return {reinterpret_cast<const char*>(data_) + offset, size};
  }
  /// Only a few scattered places of it will be touched: nothing is read ahead.
  void expect_scattered_reads() const;

 private:
  std::string path_;
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

/// A contiguous tensor over `file` from byte `offset` on, which keeps the mapping alive. Where the
/// offset does not suit the element type the bytes are copied. The caller has checked the range.
at::Tensor tensor_in_file(const std::shared_ptr<MappedFile>& file,
                          uint64_t offset,
                          at::IntArrayRef shape,
                          at::ScalarType dtype);
/// Whether the tensor's memory is a file's, by tensor_in_file().
bool lies_in_file(const at::Tensor& tensor);

/// A file for values that are too many to be held in memory.
///
/// Usage: ScratchFile file(path); file.append(piece); ...; at::Tensor whole = file.tensor(...);
class ScratchFile {
 public:
  /// @param path is in use, as `path.part`, until the object is destroyed @throws as AtomicFile
  explicit ScratchFile(const std::string& path) : file_(path) {}
  /// @param piece on any device @throws as AtomicFile
  void append(const at::Tensor& piece);
  /// Everything that was appended, as a tensor in the file (lies_in_file()). The file has no name
  /// any more once this object is destroyed; its space is given back with the last tensor in it.
  /// @throws as AtomicFile
  at::Tensor tensor(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  AtomicFile file_;
};

}  // namespace dalle2
