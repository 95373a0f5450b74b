// SPDX-License-Identifier: MIT
#include "io/streams/unpack.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr size_t kUnpackedBytes = size_t{1} << 17;

class Unpacker {
 public:
  Unpacker(ByteSource packed, std::string origin)
      : packed_(std::move(packed)), origin_(std::move(origin)) {}
  ~Unpacker() {
    if (handle_ != nullptr) archive_read_free(handle_);
  }
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  size_t read(char* buffer, size_t capacity) {
    if (!std::exchange(looked_, true)) look();
    if (packing_.empty()) return read_packed(buffer, capacity);
    const la_ssize_t got = archive_read_data(handle_, buffer, capacity);
    if (got < 0) fail();
    return static_cast<size_t>(got);
  }

 private:
  void look() {
    while (begin_.size() < kPackingMagicBytes) {
      char bytes[kPackingMagicBytes];
      const size_t got = packed_(bytes, kPackingMagicBytes - begin_.size());
      if (got == 0) break;
      begin_.append(bytes, got);
    }
    packing_ = packing_of(begin_);
    if (!packing_.empty()) open();
  }

  void open() {
    handle_ = archive_read_new();
    if (handle_ == nullptr) throw ResourceError("{}: out of memory for {}", origin_, packing_);
    block_.resize(kUnpackedBytes);
    archive_read_support_filter_bzip2(handle_);
    archive_read_support_filter_xz(handle_);
    archive_read_support_filter_zstd(handle_);
    archive_read_support_format_raw(handle_);
    archive_read_support_format_empty(handle_);
    archive_entry* entry = nullptr;
    if (archive_read_open(handle_, this, nullptr, &read_block, nullptr) != ARCHIVE_OK) fail();
    const int result = archive_read_next_header(handle_, &entry);
    if (result != ARCHIVE_OK && result != ARCHIVE_EOF) fail();
  }

  [[noreturn]] void fail() const {
    if (failure_) std::rethrow_exception(failure_);
    const char* text = archive_error_string(handle_);
    throw DataError(
        "{}: damaged {} data: {}", origin_, packing_, text != nullptr ? text : "unknown error");
  }

  /// What was looked at, then the rest.
  size_t read_packed(char* buffer, size_t capacity) {
    if (begin_.empty()) return packed_(buffer, capacity);
    const size_t size = begin_.copy(buffer, capacity);
    begin_.erase(0, size);
    return size;
  }

  static la_ssize_t read_block(archive* handle, void* self, const void** block) {
    Unpacker& unpacker = *static_cast<Unpacker*>(self);
    *block = unpacker.block_.data();
    try {
      return static_cast<la_ssize_t>(
          unpacker.read_packed(unpacker.block_.data(), unpacker.block_.size()));
    } catch (...) {
      unpacker.failure_ = std::current_exception();
      archive_set_error(handle, EIO, "the stream failed");
      return ARCHIVE_FATAL;
    }
  }

  ByteSource packed_;
  std::string origin_;
  bool looked_ = false;
  std::string begin_;    // that was looked at and not read yet
  std::string packing_;  // empty: none
  archive* handle_ = nullptr;
  std::string block_;           // kUnpackedBytes, if something is unpacked
  std::exception_ptr failure_;  // of the source, carried past libarchive
};

}  // namespace

std::string packing_of(const std::string& begin) {
  if (begin.starts_with("BZh")) return "bzip2";
  if (begin.starts_with("\xfd"
                        "7zXZ"))
    return "xz";
  if (begin.starts_with("\x28\xb5\x2f\xfd")) return "zstd";
  return "";
}

ByteSource unpacked_source(ByteSource packed, const std::string& origin) {
  const auto unpacker = std::make_shared<Unpacker>(std::move(packed), origin);
  return [unpacker](char* buffer, size_t capacity) { return unpacker->read(buffer, capacity); };
}

}  // namespace dalle2
