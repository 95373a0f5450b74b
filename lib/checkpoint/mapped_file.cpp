// SPDX-License-Identifier: MIT
#include "checkpoint/mapped_file.h"

#include "base/error.h"

#include <torch/types.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

namespace dalle2 {
namespace {

/// What a tensor in a file keeps alive.
using Keeper = std::shared_ptr<MappedFile>;

void let_go(void* keeper) {
  delete static_cast<Keeper*>(keeper);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw DataError("{}: cannot be opened: {}", path_, errno_text(errno));
  }
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string reason = known ? "is not a plain file" : errno_text(errno);
    ::close(descriptor);
    throw DataError("{}: cannot be read: {}", path_, reason);
  }
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ > 0) {
    void* memory =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    const int error = errno;
    if (memory == MAP_FAILED) {
      ::close(descriptor);
      throw DataError("{}: cannot be mapped into memory: {}", path_, errno_text(error));
    }
    data_ = static_cast<uint8_t*>(memory);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

void MappedFile::expect_scattered_reads() const {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_RANDOM);
}

at::Tensor tensor_in_file(const std::shared_ptr<MappedFile>& file,
                          uint64_t offset,
                          at::IntArrayRef shape,
                          at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  int64_t count = 1;
  for (const int64_t extent : shape) {
    count *= extent;
  }
  if (count == 0) {
    return at::empty(shape, options);
  }
  const size_t item = c10::elementSize(dtype);
  uint8_t* bytes =
      const_cast<uint8_t*>(file->data()) + offset;  // the mapping is private and writable
  if (reinterpret_cast<uintptr_t>(bytes) % item != 0) {
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.data_ptr(), bytes, static_cast<size_t>(count) * item);
    return copy;
  }
  return at::for_blob(bytes, shape)
      .context(new Keeper(file), &let_go)
      .options(options)
      .make_tensor();
}

bool lies_in_file(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get_deleter() == &let_go;
}

}  // namespace dalle2
