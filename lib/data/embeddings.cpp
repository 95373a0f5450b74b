// SPDX-License-Identifier: MIT
#include "data/embeddings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/shards.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Prefix up to and with the last '_', and the digits behind it; none for another name.
struct EmbeddingName {
  std::string prefix;
  int64_t shard = 0;
};
std::optional<EmbeddingName> parse_name(const std::string& stem) {
  const size_t underscore = stem.rfind('_');
  if (underscore == std::string::npos) return std::nullopt;
  const std::string digits = stem.substr(underscore + 1);
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return EmbeddingName{stem.substr(0, underscore + 1), std::stoll(digits)};
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

EmbeddingRows::EmbeddingRows(NpyArray array, const std::string& origin) : array_(std::move(array)) {
  if (array_.shape.size() < 2 || array_.shape.size() > 3) {
    throw DataError(
        "{}: expected embeddings of shape [rows, width] or [rows, length, width], got {}.",
        origin,
        shape_text(array_.shape));
  }
  if (array_.type != NpyType::kFloat16 && array_.type != NpyType::kFloat32 &&
      array_.type != NpyType::kFloat64) {
    throw DataError(
        "{}: expected embeddings of float16, float32 or float64, got whole numbers.\n"
        "  Store the encoder's output as it is.",
        origin);
  }
  item_size_ = npy_item_size(array_.type);
  row_shape_.assign(array_.shape.begin() + 1, array_.shape.end());
  row_numel_ = 1;
  for (const int64_t side : row_shape_) row_numel_ *= side;
  if (row_numel_ <= 0) {
    throw DataError("{}: embeddings without width, shape {}.", origin, shape_text(array_.shape));
  }
}

bool EmbeddingRows::is_zero(int64_t row) const {
  D2_CHECK(row >= 0 && row < rows(), "row {} of {}", row, rows());
  const size_t size = static_cast<size_t>(row_numel_) * item_size_;
  const char* byte = array_.bytes.data() + static_cast<size_t>(row) * size;
  for (size_t i = 0; i < size; ++i) {
    // The sign is in the last byte of a little-endian float: -0 is zero, too.
    const unsigned mask = i % item_size_ == item_size_ - 1 ? 0x7fU : 0xffU;
    if ((static_cast<unsigned char>(byte[i]) & mask) != 0) return false;
  }
  return true;
}

void EmbeddingRows::copy_row(int64_t row, float* out) const {
  const std::vector<float> values = array_.row_float32(row);
  std::copy(values.begin(), values.end(), out);
}

EmbeddingFolder::EmbeddingFolder(const std::string& folder, std::string kind)
    : folder_(folder), kind_(std::move(kind)) {
  const std::string key = kind_ == "image" ? "img_embeddings_url" : "text_embeddings_url";
  if (!is_local_url(folder)) {
    throw ConfigError(
        "/data/{}: \"{}\" is not a folder of this machine, and others are not available yet.\n"
        "  Copy the .npy files and give their folder.",
        key,
        folder);
  }
  std::error_code error;
  fs::directory_iterator entry(local_path(folder), error);
  if (error) {
    throw DataError(
        "/data/{}: the folder \"{}\" cannot be read: {}.", key, folder, error.message());
  }
  std::string prefix;
  for (const fs::directory_iterator end; entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code ignored;
    if (path.extension() != ".npy" || entry->is_directory(ignored)) continue;
    const auto name = parse_name(path.stem().string());
    if (!name) {
      log_warning(
          "data", "{} has no shard number after its last '_' and is not used", path.string());
      continue;
    }
    if (!paths_.empty() && name->prefix != prefix) {
      throw DataError(
          "/data/{}: the folder \"{}\" has embeddings of two kinds, \"{}...npy\" and "
          "\"{}...npy\".\n"
          "  Keep each kind in a folder of its own.",
          key,
          folder,
          std::min(prefix, name->prefix),
          std::max(prefix, name->prefix));
    }
    prefix = name->prefix;
    const auto [other, added] = paths_.emplace(name->shard, path.string());
    if (!added) {
      throw DataError("/data/{}: two embedding files for shard {}: {} and {}.\n  Keep one of them.",
                      key,
                      name->shard,
                      std::min(other->second, path.string()),
                      std::max(other->second, path.string()));
    }
  }
  if (paths_.empty()) {
    const fs::path below =
        fs::path(local_path(folder)) / (kind_ == "image" ? "img_emb" : "text_emb");
    throw DataError(
        "/data/{}: the folder \"{}\" has no embedding files named <prefix>_<shard>.npy.\n  {}",
        key,
        folder,
        fs::is_directory(below, error)
            ? fmt::format("clip-retrieval puts them one folder below: give {}.", below.string())
            : "Name them like img_emb_00012.npy for shard 12, one row a sample.");
  }
  row_shape_ = load(paths_.begin()->first)->row_shape();
}

std::shared_ptr<const EmbeddingRows> EmbeddingFolder::load(int64_t shard) const {
  const std::string& path = paths_.at(shard);
  auto rows = std::make_shared<const EmbeddingRows>(read_npy(path), path);
  if (kind_ == "image" && rows->row_shape().size() != 1) {
    throw DataError("{}: expected image embeddings of shape [rows, width], got rows of shape {}.",
                    path,
                    shape_text(rows->row_shape()));
  }
  return rows;
}

std::optional<int64_t> row_of_key(const std::string& key, int64_t index_width) {
  const size_t width = static_cast<size_t>(std::max<int64_t>(index_width, 0));
  const std::string digits = key.substr(key.size() - std::min(key.size(), width));
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

EmbeddingRow parse_embedding(const std::string& content, int axes, const std::string& origin) {
  NpyArray array = parse_npy(content, origin);
  if (static_cast<int>(array.shape.size()) != axes + 1 || array.shape[0] != 1) {
    array.shape.insert(array.shape.begin(), 1);
  }
  auto rows = std::make_shared<const EmbeddingRows>(std::move(array), origin);
  return {std::move(rows), 0};
}

}  // namespace dalle2
