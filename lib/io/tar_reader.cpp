// SPDX-License-Identifier: MIT
// Reading a tar. libarchive composes accents in names and takes every name with a slash at its end
// for a folder; the keys of webdataset are the bytes as they stand, so the blocks are read here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/tar.h"
#include "io/tar_header.h"
#include "io/tar_sparse.h"

namespace dalle2 {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr uint64_t kLargestExtension = uint64_t{1} << 20;     // a long name, or PAX records
constexpr uint64_t kHarmlessSparseBytes = uint64_t{1} << 24;  // whatever little is stored of them

uint64_t padding_of(uint64_t bytes) {
  return (kTarBlock - bytes % kTarBlock) % kTarBlock;
}

std::string without_slashes(std::string name) {
  name.erase(name.find_last_not_of('/') + 1);
  return name;
}

/// What headers in front of a member's own say about it. The first one wins, as in Python.
struct Extensions {
  std::optional<std::string> name;
  PaxRecords records;

  const std::string* find(const char* key) const {
    const auto found = records.find(key);
    return found == records.end() ? nullptr : &found->second;
  }
  void take_name(std::string other) {
    if (!name) {
      name = std::move(other);
    }
  }
  void take_records(PaxRecords other) {
    const auto path = other.find("path");
    if (path != other.end()) {
      take_name(without_slashes(path->second));
    }
    records.merge(other);
  }
};

}  // namespace

struct TarReader::State {
  ByteSource source;
  uint64_t packed_bytes = 0;  // that came from the file
  std::string head;           // the first bytes that did
  uint64_t first_byte = 0;    // where in the tar the stream begins
  std::string origin;
  TarLimits limits;

  std::string buffer = std::string(kBufferBytes, '\0');
  size_t begin = 0, end = 0;  // of what lies ready in it
  uint64_t position = 0;      // of `begin` in the unpacked tar

  uint64_t header_at = 0;       // of the member at work
  std::string name, last_name;  // of the member at work, of the last whole one
  uint64_t to_skip = 0;         // the last member's padding
  uint64_t possible_body = 0;   // announced by a link or folder: it may be there or not
  PaxRecords global;
  bool done = false;

  [[noreturn]] void fail(const std::string& reason) {
    done = true;
    throw DataError("{}: damaged or truncated tar: {} (at byte {} of the unpacked tar, {})",
                    origin,
                    reason,
                    header_at,
                    last_name.empty() ? std::string("before the first whole member")
                                      : "after the member " + last_name);
  }

  // Bytes.
  size_t pull(char* to, size_t capacity);
  bool refill();
  size_t read(char* to, size_t size);
  void append(std::string& content, uint64_t size);
  void skip(uint64_t size);
  void check_bomb(uint64_t unpacked);

  // Headers.
  bool read_block(char* block);
  std::optional<TarHeader> next_header();
  std::string read_extension(const TarHeader& header);
  PaxRecords read_pax(const TarHeader& header);
  std::optional<TarHeader> next_member(Extensions& extensions);
  void apply(Extensions& extensions, TarHeader& header);

  // Contents.
  void check_size(uint64_t size);
  void read_content(const TarHeader& header, const Extensions& extensions, std::string& content);
};

/// Up to `capacity` bytes of the stream, its errors told with the place in the tar.
size_t TarReader::State::pull(char* to, size_t capacity) {
  std::string reason;
  try {
    return source(to, capacity);
  } catch (const DataError& error) {
    reason = error.what();
  } catch (...) {
    done = true;
    throw;
  }
  if (reason.starts_with(origin + ": ")) {
    reason.erase(0, origin.size() + 2);
  }
  fail(reason);
}

/// Fills the empty buffer. @return false at the end of the stream
bool TarReader::State::refill() {
  begin = 0;
  end = pull(buffer.data(), buffer.size());
  check_bomb(position + end);
  return end > 0;
}

/// @return how many bytes were read: fewer than `size` at the end of the stream only
size_t TarReader::State::read(char* to, size_t size) {
  size_t filled = 0;
  while (filled < size) {
    if (begin == end && size - filled >= buffer.size()) {  // large contents go straight there
      const size_t got = pull(to + filled, size - filled);
      if (got == 0) {
        break;
      }
      filled += got;
      position += got;
      check_bomb(position);
      continue;
    }
    if (begin == end && !refill()) {
      break;
    }
    const size_t piece = std::min(size - filled, end - begin);
    std::memcpy(to + filled, buffer.data() + begin, piece);
    begin += piece;
    position += piece;
    filled += piece;
  }
  return filled;
}

/// Grows the content as the bytes come: a lying header cannot allocate what the file does not hold.
void TarReader::State::append(std::string& content, uint64_t size) {
  while (size > 0) {
    const size_t piece = static_cast<size_t>(std::min(size, uint64_t{1} << 24));
    const size_t filled = content.size();
    content.resize(filled + piece);
    if (read(content.data() + filled, piece) < piece) {
      fail("the member " + name + " ends early");
    }
    size -= piece;
  }
}

void TarReader::State::skip(uint64_t size) {
  char scrap[4096];
  while (size > 0) {
    const size_t piece = static_cast<size_t>(std::min<uint64_t>(size, sizeof(scrap)));
    if (read(scrap, piece) < piece) {
      fail("the end of " + (name.empty() ? std::string("an extended header") : name) +
           " is missing");
    }
    size -= piece;
  }
}

void TarReader::State::check_bomb(uint64_t unpacked) {
  unpacked -= first_byte;
  if (unpacked > limits.suspicious_bytes &&
      static_cast<double>(unpacked) > static_cast<double>(packed_bytes) * limits.inflate_ratio) {
    done = true;
    throw DataError(
        "{}: {} bytes have unpacked to {} at the member {}; refused as a decompression bomb (more "
        "than {:.0f} times)",
        origin,
        packed_bytes,
        unpacked,
        name,
        limits.inflate_ratio);
  }
}

/// @return false at the end of the tar: a block of zeros, or none at all
bool TarReader::State::read_block(char* block) {
  const size_t got = read(block, kTarBlock);
  if (got == 0 && packed_bytes == 0) {
    done = true;
    throw DataError("{}: not a tar: it is empty", origin);
  }
  if (got > 0 && got < kTarBlock) {
    fail("its last header is cut");
  }
  return got > 0 && std::any_of(block, block + kTarBlock, [](char c) { return c != '\0'; });
}

/// The next header of a member or an extension, none at the end.
std::optional<TarHeader> TarReader::State::next_header() {
  char block[kTarBlock];
  const std::string_view view(block, kTarBlock);
  const uint64_t body = std::exchange(possible_body, 0);
  if (!read_block(block)) {
    return std::nullopt;
  }
  if (body > 0 && !is_tar_header(view)) {
    skip(body + padding_of(body) - kTarBlock);
    header_at = position;
    if (!read_block(block)) {
      return std::nullopt;
    }
  }
  if (!is_tar_header(view)) {
    fail(position == first_byte + kTarBlock ? "it does not begin with a header"
                                            : "a header's checksum is wrong");
  }
  std::optional<TarHeader> header = parse_tar_header(view);
  while (header && header->more_pieces) {
    if (read(block, kTarBlock) < kTarBlock) {
      fail("the table of a sparse file does not end");
    }
    const std::optional<bool> more = append_tar_pieces(view, header->pieces);
    if (!more) {
      header.reset();
      break;
    }
    header->more_pieces = *more;
  }
  if (!header) {
    fail("a header's numbers are damaged");
  }
  return header;
}

std::string TarReader::State::read_extension(const TarHeader& header) {
  if (header.stored_bytes > kLargestExtension) {
    fail(fmt::format("an extended header of {} bytes", header.stored_bytes));
  }
  std::string content;
  append(content, header.stored_bytes);
  skip(padding_of(header.stored_bytes));
  return content;
}

PaxRecords TarReader::State::read_pax(const TarHeader& header) {
  std::optional<PaxRecords> records = parse_pax(read_extension(header));
  if (!records) {
    fail("a PAX header is damaged");
  }
  return *std::move(records);
}

/// The next member's header, none at the end.
std::optional<TarHeader> TarReader::State::next_member(Extensions& extensions) {
  skip(std::exchange(to_skip, 0));
  header_at = position;
  name.clear();
  bool extended = false;
  while (std::optional<TarHeader> header = next_header()) {
    switch (header->type) {
      case 'L':
        extensions.take_name(std::string(until_nul(read_extension(*header))));
        break;
      case 'K':  // the target of a link
        read_extension(*header);
        break;
      case 'x':
      case 'X':
        extensions.take_records(read_pax(*header));
        break;
      case 'g':
        for (auto& [key, value] : read_pax(*header)) {
          global.insert_or_assign(key, value);
        }
        continue;
      default:
        apply(extensions, *header);
        return header;
    }
    extended = true;
  }
  if (extended) {
    fail("an extended header without a member");
  }
  return std::nullopt;
}

void TarReader::State::apply(Extensions& extensions, TarHeader& header) {
  extensions.take_records(global);
  if (const std::string* sparse_name = extensions.find("GNU.sparse.name")) {
    header.name = *sparse_name;
  } else if (extensions.name) {
    header.name = *extensions.name;
  }
  if (const std::string* size = extensions.find("size")) {
    const std::optional<uint64_t> value = decimal(*size);
    if (!value) {
      fail("a PAX header with the size " + *size);
    }
    header.stored_bytes = *value;
  }
}

void TarReader::State::check_size(uint64_t size) {
  if (size > limits.member_bytes) {
    done = true;
    throw DataError("{}: the member {} announces {} bytes; at most {} are read",
                    origin,
                    name,
                    size,
                    limits.member_bytes);
  }
}

void TarReader::State::read_content(const TarHeader& header,
                                    const Extensions& extensions,
                                    std::string& content) {
  check_size(header.stored_bytes);
  append(content, header.stored_bytes);
  to_skip = padding_of(header.stored_bytes);
  bool damaged = false;
  const std::optional<SparseFile> sparse = sparse_file(header, extensions.records, damaged);
  if (!sparse && !damaged) {
    return;
  }
  if (sparse) {
    check_size(sparse->real_bytes);
    damaged = sparse->real_bytes > kHarmlessSparseBytes &&
              static_cast<double>(sparse->real_bytes) >
                  static_cast<double>(content.size()) * limits.inflate_ratio;
  }
  std::optional<std::string> filled = damaged ? std::nullopt : fill_holes(content, *sparse);
  if (!filled) {
    fail("the table of the sparse file " + name + " is damaged");
  }
  content = *std::move(filled);
}

TarReader::TarReader(const std::string& path, TarLimits limits)
    : TarReader(file_source(path), path, limits) {}

TarReader::TarReader(ByteSource source,
                     const std::string& origin,
                     TarLimits limits,
                     uint64_t first_byte)
    : state_(std::make_unique<State>()) {
  State* const state = state_.get();
  const auto counted = [state, inner = std::move(source)](char* buffer, size_t capacity) {
    const size_t got = inner(buffer, capacity);
    state->packed_bytes += got;
    if (state->head.size() < kMagicBytes) {
      state->head.append(buffer, std::min(got, kMagicBytes - state->head.size()));
    }
    return got;
  };
  state_->source = unpack_source(counted, origin);
  state_->origin = origin;
  state_->limits = limits;
  state_->first_byte = state_->position = first_byte;
  state_->refill();  // so that what cannot be opened is told here
}

TarReader::~TarReader() = default;

std::optional<uint64_t> TarReader::member_offset() const {
  if (is_packed(state_->head) || state_->name.empty()) return std::nullopt;
  return state_->header_at;
}

bool TarReader::next(TarMember& member) {
  State& state = *state_;
  while (!state.done) {
    Extensions extensions;
    const std::optional<TarHeader> header = state.next_member(extensions);
    if (!header) {
      state.done = true;
      break;
    }
    state.name = header->name;
    if (is_tar_special(header->type) && !is_tar_file(*header)) {
      state.possible_body = header->stored_bytes;
      continue;
    }
    if (!is_tar_file(*header)) {
      state.skip(header->stored_bytes + padding_of(header->stored_bytes));
      continue;
    }
    member.name = header->name;
    member.content.clear();
    state.read_content(*header, extensions, member.content);
    state.last_name = member.name;
    return true;
  }
  return false;
}

}  // namespace dalle2
