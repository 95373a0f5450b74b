// SPDX-License-Identifier: MIT
#include "data/embeddings/embedding_table.h"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "data/embeddings/row_order.h"
#include "data/embeddings/table_files.h"
#include "io/files/listing.h"
#include "io/streams/remote_part.h"
#include "io/streams/url_source.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// [from, from + size) of an open file; fewer bytes at its end.
std::string bytes_of(std::ifstream& file, const std::string& path, uint64_t from, uint64_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(from));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (file.bad() || (file.fail() && !file.eof())) {
    throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  }
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// Bytes of remote rows that are fetched at a time, unless more are asked for.
constexpr uint64_t kFetchedBytes = uint64_t{4} << 20;

/// The beginning of a file, enough for its header, and its size.
RemotePart beginning_of(const std::string& path) {
  if (!is_local_url(path)) return fetch_part(path, 0, kMostNpyHeader);
  std::error_code error;
  const uint64_t size = fs::file_size(local_path(path), error);
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  std::ifstream file(local_path(path), std::ios::binary);
  return {bytes_of(file, path, 0, kMostNpyHeader), size};
}

/// @return paths or urls
std::vector<std::string> files_of_table(const std::string& folder, const std::string& key) {
  if (is_local_url(folder)) return table_files(local_path(folder), key, {".npy"});
  std::vector<ListedFile> listed = list_folder(folder);
  std::sort(listed.begin(), listed.end(), [](const ListedFile& a, const ListedFile& b) {
    return a.name < b.name;
  });
  std::vector<std::string> urls;
  for (const ListedFile& file : listed) {
    if (file.name.ends_with(".npy")) urls.push_back(file.url);
  }
  return urls;
}

bool fits(const std::vector<int64_t>& row, const std::vector<int64_t>& wanted) {
  return row.size() == wanted.size() &&
         std::equal(row.begin(), row.end(), wanted.begin(), [](int64_t size, int64_t want) {
           return want == 0 || size == want;
         });
}

std::string wanted_text(const std::vector<int64_t>& wanted) {
  std::string text = "[rows";
  for (const int64_t size : wanted) text += ", " + (size == 0 ? "length" : std::to_string(size));
  return text + "]";
}

}  // namespace

EmbeddingTable::EmbeddingTable(const std::string& folder,
                               const std::string& key,
                               const std::vector<int64_t>& row_shape,
                               const WidthAdvice& on_other_width)
    : key_(key), is_remote_(!is_local_url(folder)) {
  for (const std::string& path : files_of_table(folder, key)) {
    add_file(path, row_shape_.empty() ? row_shape : row_shape_, on_other_width);
  }
  if (rows_ == 0) {
    throw DataError("{}: expected .npy files with rows in '{}'{}, found none",
                    key,
                    public_url(folder),
                    is_local_url(folder) ? " or below it" : "");
  }
}

std::vector<TableFile> EmbeddingTable::files() const {
  std::vector<TableFile> files;
  for (const File& file : files_) files.push_back({file.path, file.layout.shape.at(0)});
  return files;
}

void EmbeddingTable::add_file(const std::string& path,
                              const std::vector<int64_t>& wanted,
                              const WidthAdvice& on_other_width) {
  const RemotePart begin = beginning_of(path);
  const std::string shown = public_url(path);
  const NpyLayout layout = parse_npy_layout(begin.bytes, begin.file_size, shown);
  const bool floats = layout.type == NpyType::kFloat16 || layout.type == NpyType::kFloat32 ||
                      layout.type == NpyType::kFloat64;
  const std::vector<int64_t> row =
      layout.shape.empty() ? layout.shape
                           : std::vector<int64_t>(layout.shape.begin() + 1, layout.shape.end());
  if (!floats || layout.shape.empty() || !fits(row, wanted) || layout.fortran_order) {
    const bool is_other_width = on_other_width && row_shape_.empty() && floats &&
                                !layout.fortran_order && !row.empty() &&
                                row.size() == wanted.size() && row.back() != wanted.back();
    throw DataError(
        "{}: {}: expected {} of float16, float32 or float64 in C order, got {}{}{}{}",
        shown,
        key_,
        wanted_text(wanted),
        shape_text(layout.shape),
        floats ? "" : " of another type",
        layout.fortran_order ? " in Fortran order (numpy.ascontiguousarray makes C order)" : "",
        is_other_width ? "\n  " + on_other_width(row.back()) : "");
  }
  if (layout.shape[0] == 0) return;
  row_shape_ = row;
  row_numel_ = 1;
  for (const int64_t extent : row) row_numel_ *= extent;
  row_bytes_ = std::max(row_bytes_, static_cast<uint64_t>(row_numel_) * npy_item_size(layout.type));
  files_.push_back({path, layout, rows_, begin.file_size, begin.state});
  rows_ += layout.shape[0];
}

std::string EmbeddingTable::local_bytes(const File& file, uint64_t from, uint64_t size) const {
  if (opened_.file != &file) {
    opened_ = {};
    opened_.stream.rdbuf()->pubsetbuf(nullptr, 0);  // rows far apart: nothing is read for later
    opened_.stream.open(local_path(file.path), std::ios::binary);
    if (opened_.stream.is_open()) opened_.file = &file;
  }
  return bytes_of(opened_.stream, file.path, from, size);
}

/// A server that tells no state changes files unseen if their size stays.
void EmbeddingTable::check_same_file(const File& file, const RemotePart& part) {
  constexpr const char* kAdvice =
      "Rows of two versions do not belong together: begin a new run with the new file, or put the old "
      "one back.";
  if (part.file_size != file.size) {
    throw DataError("{}: has {} bytes now, and had {} when the run began\n  {}",
                    public_url(file.path),
                    part.file_size,
                    file.size,
                    kAdvice);
  }
  if (part.state.empty() || file.state.empty() || part.state == file.state) return;
  throw DataError(
      "{}: the server has another file there than when the run began: its ETag or time is {}, and was "
      "{}\n  {}",
      public_url(file.path),
      one_line(part.state),
      one_line(file.state),
      kAdvice);
}

/// [from, from + size) of a file; fewer bytes if it has become shorter.
/// @param fetched bytes of a remote file that are fetched, if more
std::string EmbeddingTable::bytes_of_rows(const File& file,
                                          uint64_t from,
                                          uint64_t size,
                                          uint64_t fetched) const {
  if (!is_remote_) return local_bytes(file, from, size);
  const bool is_there = fetched_.file == &file && from >= fetched_.from &&
                        from + size <= fetched_.from + fetched_.bytes.size();
  if (!is_there) {
    RemotePart part = fetch_part(file.path, from, std::max(size, fetched));
    check_same_file(file, part);
    fetched_ = {&file, from, std::move(part.bytes)};
  }
  return fetched_.bytes.substr(from - fetched_.from, size);
}

std::vector<float> EmbeddingTable::read_rows(const File& file,
                                             int64_t first,
                                             int64_t count,
                                             uint64_t fetched) const {
  const uint64_t row_bytes = static_cast<uint64_t>(row_numel_) * npy_item_size(file.layout.type);
  const uint64_t from = file.layout.data_begin + static_cast<uint64_t>(first) * row_bytes;
  NpyArray rows;
  rows.type = file.layout.type;
  rows.shape = {count, row_numel_};
  rows.bytes = bytes_of_rows(file, from, static_cast<uint64_t>(count) * row_bytes, fetched);
  if (rows.bytes.size() != static_cast<size_t>(count) * row_bytes) {
    throw DataError("{}: the file is shorter than when the run began: it broke off at row {}",
                    public_url(file.path),
                    first + static_cast<int64_t>(rows.bytes.size() / row_bytes));
  }
  return rows.to_float32();
}

at::Tensor EmbeddingTable::read(int64_t first, int64_t count) const {
  return read(first, count, kFetchedBytes);
}

at::Tensor EmbeddingTable::gather(const std::vector<int64_t>& rows, int64_t block_rows) const {
  std::vector<int64_t> shape = {std::ssize(rows)};
  shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
  at::Tensor out = at::empty(shape, at::kFloat);
  // By row, so that each file is opened once, and its disk goes one way.
  std::vector<int64_t> by_row(rows.size());
  std::iota(by_row.begin(), by_row.end(), 0);
  std::sort(by_row.begin(), by_row.end(), [&](int64_t a, int64_t b) {
    return rows[static_cast<size_t>(a)] < rows[static_cast<size_t>(b)];
  });
  ++gathers_;
  for (const int64_t place : by_row) {
    const int64_t row = rows[static_cast<size_t>(place)];
    D2_CHECK(row >= 0 && row < rows_, "row {}", row);
    out[place].copy_(is_remote_ ? block(row / block_rows, block_rows)[row % block_rows]
                                : read(row, 1, 0)[0]);
  }
  drop_blocks();
  return out;
}

const at::Tensor& EmbeddingTable::block(int64_t number, int64_t block_rows) const {
  auto found = blocks_.find(number);
  if (found == blocks_.end()) {
    const int64_t first = number * block_rows;
    const at::Tensor rows = read(first, std::min(block_rows, rows_ - first), /*fetched=*/0);
    found = blocks_.emplace(number, Block{rows}).first;
  }
  found->second.used = gathers_;
  return found->second.rows;
}

/// Where one group of blocks ends and the next begins, the rows of a batch need both.
void EmbeddingTable::drop_blocks() const {
  while (std::ssize(blocks_) > RowOrder::kMixedBlocks) {
    const auto oldest =
        std::min_element(blocks_.begin(), blocks_.end(), [](const auto& a, const auto& b) {
          return a.second.used < b.second.used;
        });
    if (oldest->second.used == gathers_) return;
    blocks_.erase(oldest);
  }
}

at::Tensor EmbeddingTable::read(int64_t first, int64_t count, uint64_t fetched) const {
  D2_CHECK(first >= 0 && count >= 0 && first + count <= rows_, "rows {} + {}", first, count);
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
  const at::Tensor out = at::empty(shape, at::kFloat);
  float* to = out.data_ptr<float>();
  const auto behind = [](int64_t row, const File& file) { return row < file.first_row; };
  auto file = std::prev(std::upper_bound(files_.begin(), files_.end(), first, behind));
  for (int64_t row = first; row < first + count; ++file) {
    const int64_t in_file = row - file->first_row;
    const int64_t part = std::min(first + count - row, file->layout.shape[0] - in_file);
    const std::vector<float> values = read_rows(*file, in_file, part, fetched);
    to = std::copy(values.begin(), values.end(), to);
    row += part;
  }
  return out;
}

}  // namespace dalle2
