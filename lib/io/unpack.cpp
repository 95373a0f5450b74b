// SPDX-License-Identifier: MIT
// Packed streams: told by their first bytes. bzip2, xz and zstd through libarchive.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/stream.h"

namespace dalle2 {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 17;

class ArchiveFilter {
 public:
  ArchiveFilter(ByteSource packed, std::string origin)
      : packed_(std::move(packed)), origin_(std::move(origin)), handle_(archive_read_new()) {
    if (handle_ == nullptr) throw ResourceError("{}: out of memory", origin_);
    archive_read_support_filter_bzip2(handle_);
    archive_read_support_filter_xz(handle_);
    archive_read_support_filter_zstd(handle_);
    archive_read_support_format_raw(handle_);
  }
  ~ArchiveFilter() { archive_read_free(handle_); }
  ArchiveFilter(const ArchiveFilter&) = delete;
  ArchiveFilter& operator=(const ArchiveFilter&) = delete;

  size_t read(char* buffer, size_t capacity) {
    if (!open_) {
      open_ = true;
      archive_entry* entry = nullptr;
      if (archive_read_open(handle_, this, nullptr, &read_block, nullptr) != ARCHIVE_OK) fail();
      const int result = archive_read_next_header(handle_, &entry);
      if (result == ARCHIVE_EOF) return 0;
      if (result != ARCHIVE_OK) fail();
    }
    const la_ssize_t got = archive_read_data(handle_, buffer, capacity);
    if (got < 0) fail();
    return static_cast<size_t>(got);
  }

 private:
  static la_ssize_t read_block(archive* handle, void* self, const void** block) {
    ArchiveFilter& filter = *static_cast<ArchiveFilter*>(self);
    *block = filter.block_.data();
    try {
      return static_cast<la_ssize_t>(filter.packed_(filter.block_.data(), filter.block_.size()));
    } catch (...) {
      filter.failure_ = std::current_exception();
      archive_set_error(handle, EIO, "the stream failed");
      return ARCHIVE_FATAL;
    }
  }

  [[noreturn]] void fail() {
    if (failure_) std::rethrow_exception(failure_);
    const char* text = archive_error_string(handle_);
    const char* filter = archive_filter_name(handle_, 0);  // null before it is open
    throw DataError("{}: damaged or truncated {} data: {}",
                    origin_,
                    filter != nullptr ? filter : "packed",
                    text != nullptr ? text : "unknown error");
  }

  ByteSource packed_;
  std::string origin_;
  archive* handle_;
  std::string block_ = std::string(kBlockBytes, '\0');
  std::exception_ptr failure_;  // of the stream, carried past libarchive
  bool open_ = false;
};

bool is_of_libarchive(std::string_view head) {
  using namespace std::string_view_literals;
  constexpr std::array kMagics{"BZh"sv, "\xfd\x37zXZ\0"sv, "\x28\xb5\x2f\xfd"sv};
  return std::any_of(kMagics.begin(), kMagics.end(), [&](std::string_view magic) {
    return head.starts_with(magic);
  });
}

/// The first bytes of a stream, up to six, and the stream from its beginning.
std::pair<std::string, ByteSource> look_at(ByteSource source) {
  std::string head(kMagicBytes, '\0');
  size_t filled = 0;
  while (filled < head.size()) {
    const size_t got = source(head.data() + filled, head.size() - filled);
    if (got == 0) break;
    filled += got;
  }
  head.resize(filled);
  ByteSource whole = [head, at = size_t{0}, source = std::move(source)](char* buffer,
                                                                        size_t capacity) mutable {
    if (at == head.size()) return source(buffer, capacity);
    const size_t size = std::min(capacity, head.size() - at);
    std::memcpy(buffer, head.data() + at, size);
    at += size;
    return size;
  };
  return {std::move(head), std::move(whole)};
}

}  // namespace

bool is_packed(std::string_view head) {
  return head.starts_with("\x1f\x8b") || is_of_libarchive(head);
}

ByteSource unpack_source(ByteSource packed, const std::string& origin) {
  return [packed = std::move(packed), origin, unpacked = ByteSource()](char* buffer,
                                                                       size_t capacity) mutable {
    if (!unpacked) {
      auto [head, whole] = look_at(std::move(packed));
      if (is_of_libarchive(head)) {
        const auto filter = std::make_shared<ArchiveFilter>(std::move(whole), origin);
        unpacked = [filter](char* to, size_t size) { return filter->read(to, size); };
      } else {
        unpacked = gunzip_source(std::move(whole), origin);
      }
    }
    return unpacked(buffer, capacity);
  };
}

}  // namespace dalle2
