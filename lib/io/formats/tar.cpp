// SPDX-License-Identifier: MIT
#include "io/formats/tar.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace dalle2 {

/// What of a tar is not read.
struct TarUnread {
  std::string first_link;
  int64_t links = 0, others = 0;  // neither files, folders nor links
  uint64_t bytes_behind = 0;      // its end, kMost at most
  static constexpr size_t kMost = size_t{1} << 20;

  /// Looks at what follows the end: at some padding, and what is behind it.
  /// @param first what of it was read already @param block for the rest
  void look_behind(std::string_view first, std::string& block, const ByteSource& source) {
    for (size_t seen = 0; seen < kMost;) {
      const size_t padding = std::min(first.find_first_not_of('\0'), first.size());
      bytes_behind += first.size() - (bytes_behind > 0 ? 0 : padding);
      seen += first.size();
      const size_t got = source(block.data(), block.size());
      if (got == 0) break;
      first = std::string_view(block).substr(0, got);
    }
    bytes_behind = std::min<uint64_t>(bytes_behind, kMost);
  }

  std::string text() const {
    std::string text;
    if (links > 0) {
      text = fmt::format("{} in the tar ({}{}): not read, pack with tar -h --hard-dereference",
                         counted(links, "link"),
                         one_line(first_link),
                         links > 1 ? ", ..." : "");
    }
    if (bytes_behind > 0) {
      text += fmt::format("{}data behind the end of the tar ({} bytes{}, another tar?): not read",
                          text.empty() ? "" : "; ",
                          with_commas(static_cast<int64_t>(bytes_behind)),
                          bytes_behind == kMost ? " or more" : "");
    }
    return text;
  }
};

namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

// libarchive takes names through the thread's locale. Under UTF-8 it composes accents, as no other
// reader does; what ASCII does not have it leaves as it is, with a warning.

/// While it lives the thread's characters are those of a locale.
class LocaleScope {
 public:
  explicit LocaleScope(locale_t locale) : previous_(uselocale(locale)) {}
  ~LocaleScope() { uselocale(previous_); }
  LocaleScope(const LocaleScope&) = delete;
  LocaleScope& operator=(const LocaleScope&) = delete;

 private:
  locale_t previous_;
};

// Null, which changes nothing, where there is no such locale.
const locale_t kUtf8Locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
const locale_t kAsciiLocale = newlocale(LC_CTYPE_MASK, "C", nullptr);

std::string last_error(archive* handle) {
  const char* text = archive_error_string(handle);
  return text != nullptr ? text : "unknown error";
}

bool is_packed_data(const std::string& magic) {
  return magic.starts_with("\x1f\x8b") || !packing_of(magic).empty();
}

/// The name of a regular file; null for folders, links and devices.
const char* name_of_file(archive_entry* entry, TarUnread& unread) {
  const bool is_hard = archive_entry_hardlink(entry) != nullptr;
  if (is_hard || archive_entry_filetype(entry) == AE_IFLNK) {
    const char* name = archive_entry_pathname(entry);
    if (++unread.links == 1 && name != nullptr) unread.first_link = name;
  }
  const bool is_file = archive_entry_filetype(entry) == AE_IFREG && !is_hard;
  const bool is_known = is_file || is_hard || archive_entry_filetype(entry) == AE_IFLNK ||
                        archive_entry_filetype(entry) == AE_IFDIR;
  if (!is_known) ++unread.others;
  return is_file ? archive_entry_pathname(entry) : nullptr;
}

}  // namespace

struct TarReader::State {
  archive* handle = nullptr;
  ByteSource source;
  uint64_t packed_bytes = 0;  // that came from the file
  uint64_t first_byte = 0;    // where in the tar the stream begins
  std::string magic;          // the first bytes of the file, kPackingMagicBytes if it has them
  std::string origin;
  TarLimits limits;
  std::string block = std::string(kReadBytes, '\0');
  std::string last_name;       // of the last whole member
  std::exception_ptr failure;  // of the source, carried through libarchive
  bool done = false;
  bool has_end_marker = true;
  uint64_t given_bytes = 0;  // unpacked, to libarchive
  size_t in_block = 0;       // of them the last ones, in `block`
  TarUnread unread;
  std::exception_ptr rest_failure;  // of what follows the end

  ~State() {
    if (handle != nullptr) archive_read_free(handle);
  }

  bool is_packed() const { return is_packed_data(magic); }

  static la_ssize_t read_block(archive* handle, void* self, const void** block) {
    State& state = *static_cast<State*>(self);
    *block = state.block.data();
    try {
      if (state.failure) std::rethrow_exception(state.failure);
      state.in_block = state.source(state.block.data(), state.block.size());
      state.given_bytes += state.in_block;
      return static_cast<la_ssize_t>(state.in_block);
    } catch (...) {
      state.failure = std::current_exception();
      archive_set_error(handle, EIO, "the stream failed");
      return ARCHIVE_FATAL;
    }
  }

  [[noreturn]] void fail(std::string reason) {
    done = true;
    if (failure) {
      try {
        std::rethrow_exception(failure);
      } catch (const DataError& error) {
        reason = error.what();
        if (reason.starts_with(origin + ": ")) reason.erase(0, origin.size() + 2);
      }
    }
    if (packed_bytes == 0 && !failure) throw DataError("{}: not a tar: it is empty", origin);
    // Without a whole header there is no position of it.
    const int64_t header = archive_read_header_position(handle);
    const int64_t at = header > 0 ? header : std::max<int64_t>(archive_filter_bytes(handle, 0), 0);
    throw DataError("{}: damaged or truncated tar: {} (at byte {} of the unpacked tar, {})",
                    origin,
                    reason,
                    first_byte + static_cast<uint64_t>(at),
                    last_name.empty() ? std::string("before the first whole member")
                                      : "after the member " + last_name);
  }

  void open_stream() {
    const LocaleScope names_as_they_are(kAsciiLocale);
    handle = archive_read_new();
    if (handle == nullptr) throw ResourceError("{}: out of memory", origin);
    archive_read_support_format_tar(handle);
    if (archive_read_open(handle, this, nullptr, &read_block, nullptr) != ARCHIVE_OK) {
      fail(last_error(handle));
    }
  }

  void check_bomb(const std::string& name) {
    const double packed = static_cast<double>(packed_bytes);
    const double unpacked = static_cast<double>(archive_filter_bytes(handle, 0));
    if (unpacked > static_cast<double>(limits.suspicious_bytes) &&
        unpacked > packed * limits.inflate_ratio) {
      done = true;
      throw DataError(
          "{}: {:.0f} bytes have unpacked to {:.0f} at the member {}; refused as a decompression "
          "bomb (more than {:.0f} times)",
          origin,
          packed,
          unpacked,
          name,
          limits.inflate_ratio);
    }
  }

  /// A command says behind the end of its output how it ended, packed data has its checksums there,
  /// and two tars that were put together have the second. What goes on and on is left.
  void read_rest() {
    const auto consumed = static_cast<uint64_t>(archive_filter_bytes(handle, 0));
    const size_t rest = std::min<uint64_t>(given_bytes - std::min(consumed, given_bytes), in_block);
    const std::string first = block.substr(in_block - rest, rest);
    try {
      unread.look_behind(first, block, source);
    } catch (...) {
      rest_failure = std::current_exception();
    }
  }

  void read_content(archive_entry* entry, TarMember& member) {
    const int64_t announced = archive_entry_size(entry);
    if (announced < 0 || static_cast<uint64_t>(announced) > limits.member_bytes) {
      done = true;
      throw DataError("{}: the member {} announces {} bytes; at most {} are read",
                      origin,
                      member.name,
                      announced,
                      limits.member_bytes);
    }
    const size_t size = static_cast<size_t>(announced);
    const bool is_sparse = archive_entry_sparse_reset(entry) > 0;
    size_t filled = 0;
    // Grown as the bytes come, so that a lying header cannot allocate what the file does not hold.
    while (filled < size) {
      const size_t wanted = std::min(size - filled, size_t{1} << 24);
      member.content.resize(filled + wanted);
      const la_ssize_t got = archive_read_data(handle, member.content.data() + filled, wanted);
      if (got == 0 && is_sparse) break;  // it ends in a hole
      if (got <= 0) {
        fail(got == 0 ? "the member " + member.name + " ends early"
                      : last_error(handle) + " in the member " + member.name);
      }
      filled += static_cast<size_t>(got);
      check_bomb(member.name);
    }
    member.content.resize(size);
  }
};

TarReader::TarReader(const std::string& path, TarLimits limits)
    : TarReader(file_source(path), path, limits) {}

TarReader::TarReader(ByteSource source,
                     const std::string& origin,
                     TarLimits limits,
                     uint64_t first_byte)
    : state_(std::make_unique<State>()) {
  State* const state = state_.get();
  std::string& magic = state->magic;
  try {
    for (size_t got = 1; got > 0 && magic.size() < kPackingMagicBytes;) {
      char bytes[kPackingMagicBytes];
      got = source(bytes, kPackingMagicBytes - magic.size());
      magic.append(bytes, got);
    }
  } catch (...) {  // which fail() tells of
    state->failure = std::current_exception();
  }
  state->packed_bytes = magic.size();
  state->source = [state, begin = magic, rest = std::move(source)](char* buffer,
                                                                   size_t capacity) mutable {
    if (!begin.empty()) {
      const size_t got = begin.copy(buffer, capacity);
      begin.erase(0, got);
      return got;
    }
    const size_t got = rest(buffer, capacity);
    state->packed_bytes += got;
    return got;
  };
  // libarchive's own gzip filter loses up to 64 KiB of whole members before a cut, and behind the
  // end of a tar it leaves the checksums of the others unread.
  if (state->is_packed())
    state->source = unpacked_source(gunzip_source(std::move(state->source), origin), origin);
  state_->origin = origin;
  state_->limits = limits;
  state_->first_byte = first_byte;
  state_->open_stream();
}

std::optional<uint64_t> TarReader::member_offset() const {
  const int64_t header = archive_read_header_position(state_->handle);
  if (state_->is_packed() || header < 0) return std::nullopt;
  return state_->first_byte + static_cast<uint64_t>(header);
}

void TarReader::check_rest() {
  D2_CHECK(state_->done, "{}: the tar goes on", state_->origin);
  if (state_->rest_failure) std::rethrow_exception(state_->rest_failure);
}

int64_t TarReader::passed_over() const {
  return state_->unread.others;
}

std::string TarReader::unread() const {
  return state_->unread.text();
}

bool TarReader::has_end_marker() const {
  return state_->has_end_marker;
}

TarReader::~TarReader() = default;

bool TarReader::next(TarMember& member) {
  State& state = *state_;
  const LocaleScope names_as_they_are(kAsciiLocale);
  while (!state.done) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(state.handle, &entry);
    if (result == ARCHIVE_EOF) {
      state.done = true;
      // What is after the last member was taken as its end, if anything was.
      state.has_end_marker =
          archive_filter_bytes(state.handle, 0) > archive_read_header_position(state.handle);
      state.read_rest();
      break;
    }
    // A warning is about an attribute (a time, an owner, a name of another charset), not the
    // content.
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) state.fail(last_error(state.handle));
    state.check_bomb(state.last_name);
    const char* name = name_of_file(entry, state.unread);
    if (name == nullptr) continue;
    member.name = name;
    member.content.clear();
    state.read_content(entry, member);
    state.last_name = member.name;
    return true;
  }
  return false;
}

TarList list_tar(const std::string& path) {
  std::string magic(kPackingMagicBytes, '\0');
  magic.resize(file_source(path)(magic.data(), magic.size()));
  if (is_packed_data(magic)) return {.places = {}, .fault = "it is packed: unpack it first"};
  const LocaleScope names_as_they_are(kAsciiLocale);
  const std::unique_ptr<archive, int (*)(archive*)> reader(archive_read_new(), &archive_read_free);
  if (!reader) throw ResourceError("{}: out of memory", path);
  archive_read_support_format_tar(reader.get());
  TarList list;
  TarUnread unread;
  if (archive_read_open_filename(reader.get(), path.c_str(), kReadBytes) != ARCHIVE_OK) {
    list.fault = last_error(reader.get());
    return list;
  }
  for (archive_entry* entry = nullptr;;) {
    const int result = archive_read_next_header(reader.get(), &entry);
    if (result == ARCHIVE_EOF) {
      const auto end = static_cast<uint64_t>(archive_filter_bytes(reader.get(), 0));
      std::string block(kReadBytes, '\0');
      unread.look_behind("", block, file_source(path, end));
      list.unread = unread.text();
      return list;
    }
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      list.fault = last_error(reader.get());
      return list;
    }
    const char* name = name_of_file(entry, unread);
    if (name == nullptr) continue;
    list.places.push_back(
        {name, static_cast<uint64_t>(archive_read_header_position(reader.get()))});
  }
}

TarMember read_tar_member(const std::string& path, uint64_t offset) {
  TarReader reader(file_source(path, offset), path, {}, offset);
  TarMember member;
  if (!reader.next(member)) throw DataError("{}: no member at byte {}", path, offset);
  return member;
}

struct TarWriter::State {
  const std::string path;
  AtomicFile file;
  archive* handle = nullptr;
  std::exception_ptr failure;  // of the file, carried past libarchive
  bool given_up = false;

  explicit State(const std::string& name) : path(name), file(name) {}
  ~State() {
    given_up = true;
    if (handle != nullptr) {
      archive_write_free(handle);  // writes the end of the tar, to nowhere
    }
  }

  /// Never fails towards libarchive, which leaks its buffers after a failure; check() tells
  /// instead.
  static la_ssize_t write_block(archive*, void* self, const void* data, size_t size) {
    State& state = *static_cast<State*>(self);
    try {
      if (!state.given_up && !state.failure) state.file.write(data, size);
    } catch (...) {
      state.failure = std::current_exception();
    }
    return static_cast<la_ssize_t>(size);
  }

  void check(int result, const std::string& what) {
    if (failure) std::rethrow_exception(failure);
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      throw DataError("{}: cannot write {}: {}", path, what, last_error(handle));
    }
  }
};

TarWriter::TarWriter(const std::string& path, bool gzip) : state_(std::make_unique<State>(path)) {
  const LocaleScope utf8(kUtf8Locale);
  state_->handle = archive_write_new();
  if (state_->handle == nullptr) throw ResourceError("{}: out of memory", path);
  if (gzip) {
    archive_write_add_filter_gzip(state_->handle);
    archive_write_set_filter_option(state_->handle, "gzip", "timestamp", nullptr);
  }
  archive_write_set_format_pax_restricted(state_->handle);
  archive_write_set_bytes_in_last_block(state_->handle, 1);  // no padding to 10 KiB
  state_->check(
      archive_write_open(state_->handle, state_.get(), nullptr, &State::write_block, nullptr),
      "the tar");
}

TarWriter::~TarWriter() = default;

void TarWriter::add(const std::string& name, const std::string& content) {
  D2_CHECK(state_->handle != nullptr, "add to a committed tar");
  const LocaleScope utf8(kUtf8Locale);
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                       &archive_entry_free);
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(content.size()));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_mtime(entry.get(), 0, 0);
  state_->check(archive_write_header(state_->handle, entry.get()), name);
  size_t written = 0;
  while (written < content.size()) {
    const la_ssize_t result =
        archive_write_data(state_->handle, content.data() + written, content.size() - written);
    state_->check(result > 0 ? ARCHIVE_OK : ARCHIVE_FATAL, name);
    written += static_cast<size_t>(result);
  }
}

void TarWriter::commit() {
  D2_CHECK(state_->handle != nullptr, "a tar is committed once");
  const LocaleScope utf8(kUtf8Locale);
  state_->check(archive_write_close(state_->handle), "the end of the tar");
  archive_write_free(std::exchange(state_->handle, nullptr));
  state_->file.commit();
}

}  // namespace dalle2
