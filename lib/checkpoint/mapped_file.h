// SPDX-License-Identifier: MIT
// A file as memory, read when touched.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace dalle2
