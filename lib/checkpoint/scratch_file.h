// SPDX-License-Identifier: MIT
// A file for values that are too many to be held in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "io/files/atomic_file.h"

namespace dalle2 {

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
