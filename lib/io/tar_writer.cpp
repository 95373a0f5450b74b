// SPDX-License-Identifier: MIT
// Writing a tar, through libarchive.
#include "io/tar.h"

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/utf8_scope.h"

#include <archive.h>
#include <archive_entry.h>

#include <exception>
#include <utility>

namespace dalle2 {
namespace {

std::string last_error(archive* handle) {
  const char* text = archive_error_string(handle);
  return text != nullptr ? text : "unknown error";
}

}  // namespace

struct TarWriter::State {
  AtomicFile file;
  archive* handle = nullptr;
  std::exception_ptr failure;  // of the file, carried past libarchive
  bool given_up = false;

  explicit State(const std::string& path) : file(path) {}
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
      if (!state.given_up && !state.failure) {
        state.file.write(data, size);
      }
    } catch (...) {
      state.failure = std::current_exception();
    }
    return static_cast<la_ssize_t>(size);
  }

  void check(int result, const std::string& what) {
    if (failure) {
      std::rethrow_exception(failure);
    }
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      throw DataError("{}: cannot write {}: {}", file.part_path(), what, last_error(handle));
    }
  }
};

TarWriter::TarWriter(const std::string& path, bool gzip) : state_(std::make_unique<State>(path)) {
  // libarchive converts names through the locale; in "C" every non-ASCII name would be lost.
  const Utf8Scope locale;
  state_->handle = archive_write_new();
  if (state_->handle == nullptr) {
    throw ResourceError("{}: out of memory", path);
  }
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
  const Utf8Scope locale;
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
  const Utf8Scope locale;
  state_->check(archive_write_close(state_->handle), "the end of the tar");
  archive_write_free(std::exchange(state_->handle, nullptr));
  state_->file.commit();
}

}  // namespace dalle2
