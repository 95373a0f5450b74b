// SPDX-License-Identifier: MIT
#include "checkpoint/archive/mapped_file.h"

#include "base/error.h"
#include "base/text.h"
#include "io/files/disk_io.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <sys/mman.h>
#include <sys/stat.h>
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
  const OpenFile file(path_);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) file.fail_to_read(errno);
  if (S_ISDIR(status.st_mode)) throw DataError("{}: expected a file, got a folder", path_);
  if (!S_ISREG(status.st_mode)) throw DataError("{}: cannot be read: is not a plain file", path_);
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ == 0) return;
  void* memory = ::mmap(
      nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (memory == MAP_FAILED) {
    constexpr const char* kText = "{}: cannot be mapped into memory: {}";
    if (errno == ENOMEM) throw ResourceError(kText, path_, errno_text(errno));
    throw DataError(kText, path_, errno_text(errno));
  }
  data_ = static_cast<uint8_t*>(memory);
  const std::string front = lower_case(bytes(0, std::min<uint64_t>(size_, 20)));
  if (front.starts_with("version https://git-"))
    throw DataError("{}: is a pointer of Git LFS: `git lfs pull` fetches the file itself", path_);
  if (front.starts_with("<!doctype html") || front.starts_with("<html"))
    throw DataError("{}: is a web page: download the file itself (of a hub: .../resolve/main/...)",
                    path_);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::expect_scattered_reads() const {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_RANDOM);
}

at::Tensor tensor_in_file(const std::shared_ptr<MappedFile>& file,
                          uint64_t offset,
                          at::IntArrayRef shape,
                          at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const int64_t count = c10::multiply_integers(shape);
  if (count == 0) return at::empty(shape, options);
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
