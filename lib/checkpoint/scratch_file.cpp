// SPDX-License-Identifier: MIT
#include "checkpoint/scratch_file.h"

#include <ATen/ATen.h>

#include <memory>

#include "base/error.h"
#include "checkpoint/mapped_file.h"

namespace dalle2 {

void ScratchFile::append(const at::Tensor& piece) {
  const at::Tensor values = piece.contiguous().cpu();
  file_.write(values.const_data_ptr(), values.nbytes());
}

at::Tensor ScratchFile::tensor(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto bytes = static_cast<uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  D2_CHECK(bytes == file_.position(), "{} bytes for a tensor of {}", file_.position(), bytes);
  file_.sync();  // a network file system may tell only now that it is full; a mapping cannot
  return tensor_in_file(std::make_shared<MappedFile>(file_.part_path()), 0, shape, dtype);
}

}  // namespace dalle2
