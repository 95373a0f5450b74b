// SPDX-License-Identifier: MIT
#include "io/streams/stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/files/disk_io.h"

namespace dalle2 {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 17;
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);

/// Looks at the first bytes, then passes on or inflates.
class Gunzip {
 public:
  Gunzip(ByteSource packed, std::string origin)
      : packed_(std::move(packed)), origin_(std::move(origin)) {}
  ~Gunzip() {
    if (mode_ == Mode::kInflate) inflateEnd(&stream_);
  }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  size_t read(char* buffer, size_t capacity) {
    if (mode_ == Mode::kUnknown) look();
    if (mode_ == Mode::kPlain) {
      if (available() == 0) return packed_(buffer, capacity);
      const size_t size = std::min(capacity, available());
      std::memcpy(buffer, block_.data() + begin_, size);
      begin_ += size;
      return size;
    }
    return mode_ == Mode::kInflate ? inflate_into(buffer, capacity) : 0;
  }

 private:
  enum class Mode { kUnknown, kPlain, kInflate, kEnd };

  size_t available() const { return end_ - begin_; }

  /// Reads until `wanted` bytes lie ready, or all that there are.
  void fill(size_t wanted) {
    if (begin_ == end_) {
      begin_ = end_ = 0;
    } else if (wanted > available() && begin_ > 0) {
      std::memmove(block_.data(), block_.data() + begin_, available());
      end_ -= begin_;
      begin_ = 0;
    }
    while (available() < wanted) {
      const size_t got = packed_(block_.data() + end_, block_.size() - end_);
      if (got == 0) return;
      end_ += got;
    }
  }

  bool at_magic() {
    fill(kGzipMagic.size());
    return std::string_view(block_.data() + begin_, available()).starts_with(kGzipMagic);
  }

  void look() {
    mode_ = Mode::kPlain;
    if (at_magic()) {
      constexpr int kGzipOnly = 16;
      if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) {
        throw ResourceError("{}: out of memory for gzip", origin_);
      }
      mode_ = Mode::kInflate;
    }
  }

  size_t inflate_into(char* buffer, size_t capacity) {
    const uInt room = static_cast<uInt>(std::min<size_t>(capacity, size_t{1} << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      fill(1);
      if (available() == 0) throw DataError("{}: truncated gzip data", origin_);
      stream_.next_in = reinterpret_cast<Bytef*>(block_.data() + begin_);
      stream_.avail_in = static_cast<uInt>(available());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      begin_ = end_ - stream_.avail_in;
      if (result == Z_STREAM_END) {
        // Another member may follow; what else stands after the last one is padding.
        if (!at_magic()) {
          inflateEnd(&stream_);
          mode_ = Mode::kEnd;
          break;
        }
        inflateReset(&stream_);
      } else if (result != Z_OK && stream_.avail_out == room) {
        throw DataError("{}: damaged gzip data: {}",
                        origin_,
                        stream_.msg != nullptr ? stream_.msg : "unknown error");
      }
    }
    return room - stream_.avail_out;
  }

  ByteSource packed_;
  std::string origin_;
  std::string block_ = std::string(kBlockBytes, '\0');
  size_t begin_ = 0, end_ = 0;  // of what lies ready in block_
  Mode mode_ = Mode::kUnknown;
  z_stream stream_{};
};

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
    block_.resize(kBlockBytes);
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
  std::string block_;           // kBlockBytes, if something is unpacked
  std::exception_ptr failure_;  // of the source, carried past libarchive
};

/// To a place within the file.
void seek(int descriptor, const std::string& path, uint64_t offset) {
  const off_t size = lseek(descriptor, 0, SEEK_END);
  if (size < 0)
    throw DataError("{}: cannot be read from byte {}: {}", path, offset, errno_text(errno));
  if (static_cast<uint64_t>(size) < offset) {
    throw DataError("{}: the file ends at byte {}, before byte {}", path, size, offset);
  }
  lseek(descriptor, static_cast<off_t>(offset), SEEK_SET);
}

}  // namespace

ByteSource file_source(const std::string& path, uint64_t offset) {
  const auto file = std::make_shared<OpenFile>(path);
  struct stat status {};
  if (fstat(file->descriptor(), &status) == 0 && S_ISDIR(status.st_mode)) {
    throw DataError("{}: is a folder, a file is expected", path);
  }
  if (offset > 0) seek(file->descriptor(), path, offset);
  return std::bind_front(&OpenFile::read, file);
}

std::string read_source(const ByteSource& source, const std::string& origin, uint64_t most) {
  std::string content;
  while (true) {
    const size_t size = content.size();
    content.resize(size + std::max(size / 2, kBlockBytes));
    const size_t got = source(content.data() + size, content.size() - size);
    content.resize(size + got);
    if (content.size() > most) {
      throw DataError(
          "{}: it has more than {}, which is all that is read", origin, human_bytes(most));
    }
    if (got == 0) return content;
  }
}

ByteSource gunzip_source(ByteSource packed, const std::string& origin) {
  const auto gunzip = std::make_shared<Gunzip>(std::move(packed), origin);
  return std::bind_front(&Gunzip::read, gunzip);
}

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
  return std::bind_front(&Unpacker::read, unpacker);
}

}  // namespace dalle2
