// SPDX-License-Identifier: MIT
#include "data/embeddings/embedding_table.h"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "data/embeddings/embeddings.h"
#include "data/embeddings/table_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// [from, from + size) of a file; fewer bytes at its end.
std::string bytes_of(const std::string& path, uint64_t from, uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  file.seekg(static_cast<std::streamoff>(from));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (file.bad() || (file.fail() && !file.eof())) {
    throw DataError("{}: cannot be read: {}", path, errno_text(errno));
  }
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
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
                               const std::vector<int64_t>& row_shape)
    : key_(key) {
  for (const std::string& path : table_files(folder, key, {".npy"})) {
    add_file(path, row_shape_.empty() ? row_shape : row_shape_);
  }
  if (rows_ == 0) {
    throw DataError(
        "{}: expected .npy files with rows in '{}' or below it, found none", key, folder);
  }
}

void EmbeddingTable::add_file(const std::string& path, const std::vector<int64_t>& wanted) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  const NpyLayout layout = parse_npy_layout(bytes_of(path, 0, kMostNpyHeader), size, path);
  const bool floats = layout.type == NpyType::kFloat16 || layout.type == NpyType::kFloat32 ||
                      layout.type == NpyType::kFloat64;
  const std::vector<int64_t> row =
      layout.shape.empty() ? layout.shape
                           : std::vector<int64_t>(layout.shape.begin() + 1, layout.shape.end());
  if (!floats || layout.shape.empty() || !fits(row, wanted) || layout.fortran_order) {
    throw DataError(
        "{}: {}: expected {} of float16, float32 or float64 in C order, got {}{}{}",
        path,
        key_,
        wanted_text(wanted),
        shape_text(layout.shape),
        floats ? "" : " of another type",
        layout.fortran_order ? " in Fortran order (numpy.ascontiguousarray makes C order)" : "");
  }
  if (layout.shape[0] == 0) return;
  row_shape_ = row;
  row_numel_ = 1;
  for (const int64_t extent : row) row_numel_ *= extent;
  files_.push_back({path, layout, rows_});
  rows_ += layout.shape[0];
}

std::vector<float> EmbeddingTable::read_rows(const File& file, int64_t first, int64_t count) const {
  const uint64_t row_bytes = static_cast<uint64_t>(row_numel_) * npy_item_size(file.layout.type);
  const uint64_t from = file.layout.data_begin + static_cast<uint64_t>(first) * row_bytes;
  NpyArray rows;
  rows.type = file.layout.type;
  rows.shape = {count, row_numel_};
  rows.bytes = bytes_of(file.path, from, static_cast<uint64_t>(count) * row_bytes);
  if (rows.bytes.size() != static_cast<size_t>(count) * row_bytes) {
    throw DataError("{}: the file is shorter than when the run began: it broke off at row {}",
                    file.path,
                    first + static_cast<int64_t>(rows.bytes.size() / row_bytes));
  }
  return rows.to_float32();
}

at::Tensor EmbeddingTable::read(int64_t first, int64_t count) const {
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
    const std::vector<float> values = read_rows(*file, in_file, part);
    to = std::copy(values.begin(), values.end(), to);
    row += part;
  }
  return out;
}

}  // namespace dalle2
