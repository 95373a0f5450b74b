// SPDX-License-Identifier: MIT
#include "metrics/known_features.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "net/digest.h"

namespace dalle2 {
namespace {

constexpr int64_t kHashBytes = 32;
constexpr const char* kHashes = "sha256";
constexpr const char* kIdentity = "features of";
const std::string kSumOf = "sha256 of ";  // and the name of a tensor

std::string sum_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  return to_hex(sha256({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()}));
}

/// The 32 bytes of a row of hashes.
std::string hash_text(const at::Tensor& row) {
  const at::Tensor bytes = row.to(at::kByte).contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(kHashBytes)};
}

/// At least `rows` rows, the first `used` of which stay.
void make_room(at::Tensor& matrix, int64_t used, int64_t rows, int64_t width) {
  if (matrix.defined() && matrix.size(0) >= rows) return;
  at::Tensor larger = at::empty({std::max(rows, 2 * used), width}, at::kFloat);
  if (used > 0) larger.narrow(0, 0, used).copy_(matrix.narrow(0, 0, used));
  matrix = std::move(larger);
}

at::Tensor as_row(const std::string& hash) {
  at::Tensor bytes = at::empty({kHashBytes}, at::kByte);
  std::copy(hash.begin(), hash.end(), static_cast<char*>(bytes.mutable_data_ptr()));
  return bytes.to(at::kFloat);
}

}  // namespace

at::Tensor hashes_of(const at::Tensor& images) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < images.size(0); ++i) {
    const at::Tensor bytes = images[i].contiguous();
    std::string content = fmt::format("{}x{} ", bytes.size(-2), bytes.size(-1));
    content.append(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    rows.push_back(as_row(sha256(content)));
  }
  return rows.empty() ? at::zeros({0, kHashBytes}) : at::stack(rows);
}

KnownFeatures::KnownFeatures(std::vector<std::string> names, std::string identity)
    : names_(std::move(names)), identity_(std::move(identity)) {}

bool KnownFeatures::contains(const at::Tensor& hash) const {
  return places_.contains(hash_text(hash));
}

NamedFeatures KnownFeatures::at(const at::Tensor& hashes) const {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < hashes.size(0); ++i) places.push_back(places_.at(hash_text(hashes[i])));
  NamedFeatures found;
  for (const auto& [name, matrix] : matrices_) {
    found[name] = matrix.index_select(0, at::tensor(places, at::kLong));
  }
  return found;
}

void KnownFeatures::add(const at::Tensor& hashes, const NamedFeatures& features) {
  const int64_t before = count();
  std::vector<int64_t> fresh;
  for (int64_t i = 0; i < hashes.size(0); ++i) {
    if (places_.try_emplace(hash_text(hashes[i]), count()).second) fresh.push_back(i);
  }
  if (fresh.empty()) return;
  for (const std::string& name : names_) {
    const at::Tensor& rows = features.at(name);
    at::Tensor& matrix = matrices_[name];
    make_room(matrix, before, count(), rows.size(1));
    matrix.narrow(0, before, std::ssize(fresh))
        .copy_(rows.index_select(0, at::tensor(fresh, at::kLong)));
  }
  has_news_ = true;
}

std::string KnownFeatures::path_in(const std::string& folder) const {
  constexpr size_t kDigits = 16;
  const std::string name = to_hex(sha256(identity_)).substr(0, kDigits);
  return (std::filesystem::path(folder) / ("real-" + name + ".safetensors")).string();
}

std::string KnownFeatures::load(const std::string& folder) {
  const std::string path = path_in(folder);
  try {
    if (!std::filesystem::exists(path)) return "";
    const SafetensorsFile file = read_safetensors(path);
    const auto identity = file.metadata.find(kIdentity);
    if (identity == file.metadata.end() || identity->second != identity_) {
      throw DataError("holds features of something else");
    }
    const auto matrix = [&](const std::string& name) -> const at::Tensor& {
      const at::Tensor* found = find_tensor(file.tensors, name);
      if (found == nullptr || found->dim() != 2) throw DataError("lacks a matrix \"{}\"", name);
      const auto sum = file.metadata.find(kSumOf + name);
      if (sum == file.metadata.end() || sum->second != sum_of(*found)) {
        throw DataError("\"{}\" is damaged: its checksum does not match", name);
      }
      return *found;
    };
    const at::Tensor& hashes = matrix(kHashes);
    if (hashes.scalar_type() != at::kByte || hashes.size(1) != kHashBytes) {
      throw DataError("\"{}\": expected rows of {} bytes", kHashes, kHashBytes);
    }
    NamedFeatures features;
    for (const std::string& name : names_) {
      const at::Tensor& rows = matrix(name);
      if (rows.scalar_type() != at::kFloat || rows.size(0) != hashes.size(0) ||
          !rows.isfinite().all().item<bool>()) {
        throw DataError("\"{}\": expected {} rows of finite float32", name, hashes.size(0));
      }
      features[name] = rows;
    }
    const bool had_news = has_news_;
    add(hashes.to(at::kFloat), features);
    has_news_ = had_news;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.starts_with(path) ? text : fmt::format("{}: {}", path, text);
  }
  return "";
}

void KnownFeatures::save(const std::string& folder) {
  std::filesystem::create_directories(folder);
  StateDict tensors;
  std::vector<at::Tensor> hashes;
  std::vector<int64_t>
      places;  // in the order of the hashes: the order of the pictures does not matter
  for (const auto& [hash, place] : places_) {
    hashes.push_back(as_row(hash).to(at::kByte));
    places.push_back(place);
  }
  tensors.emplace_back(kHashes, at::stack(hashes));
  for (const std::string& name : names_) {
    tensors.emplace_back(name, matrices_.at(name).index_select(0, at::tensor(places, at::kLong)));
  }
  std::map<std::string, std::string> metadata = {{kIdentity, identity_}};
  for (const auto& [name, tensor] : tensors) metadata[kSumOf + name] = sum_of(tensor);
  write_safetensors(path_in(folder), tensors, metadata);
  has_news_ = false;
}

void FeatureRows::add(const at::Tensor& index, const at::Tensor& features) {
  D2_CHECK(features.dim() == 2 && index.numel() == features.size(0), "a row a number");
  D2_CHECK(parts_.empty() || parts_.front().size(1) == features.size(1), "rows of one width");
  if (index.numel() == 0) return;
  at::Tensor rows = features.to(at::kCPU, at::kFloat).contiguous();
  // Later changes by the caller do not reach what is kept.
  if (rows.is_same(features)) rows = rows.clone();
  indices_.push_back(index.to(at::kCPU, at::kLong).clone());
  parts_.push_back(std::move(rows));
  settled_ = false;
}

/// One matrix, in order. Each part goes as soon as its rows are in it: the features of an evaluation
/// are large.
void FeatureRows::settle() const {
  if (settled_) return;
  const at::Tensor index = at::cat(indices_);
  const auto* number = index.const_data_ptr<int64_t>();
  std::vector<int64_t> order(static_cast<size_t>(index.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto number_of = [&](int64_t row) { return number[row]; };
  std::ranges::stable_sort(order, {}, number_of);
  order.erase(std::ranges::unique(order, {}, number_of).begin(), order.end());
  std::vector<int64_t> place_of(static_cast<size_t>(index.numel()), -1);  // -1: came a second time
  for (size_t place = 0; place < order.size(); ++place) {
    place_of[static_cast<size_t>(order[place])] = static_cast<int64_t>(place);
  }
  at::Tensor rows = at::empty({std::ssize(order), parts_.front().size(1)}, at::kFloat);
  size_t before = 0;
  for (at::Tensor& part : parts_) {
    std::vector<int64_t> from, to;
    for (int64_t row = 0; row < part.size(0); ++row) {
      const int64_t place = place_of[before + static_cast<size_t>(row)];
      if (place < 0) continue;
      from.push_back(row);
      to.push_back(place);
    }
    before += static_cast<size_t>(part.size(0));
    rows.index_copy_(
        0, at::tensor(to, at::kLong), part.index_select(0, at::tensor(from, at::kLong)));
    part.reset();
  }
  indices_ = {index.index_select(0, at::tensor(order, at::kLong))};
  parts_ = {std::move(rows)};
  settled_ = true;
}

int64_t FeatureRows::count() const {
  settle();
  return parts_.empty() ? 0 : parts_.front().size(0);
}

at::Tensor FeatureRows::rows() const {
  settle();
  return parts_.empty() ? at::zeros({0, 0}) : parts_.front();
}

at::Tensor FeatureRows::index() const {
  settle();
  return indices_.empty() ? at::zeros({0}, at::kLong) : indices_.front();
}

void FeatureRows::gather(ProcessGroup& group, const std::string& what) {
  if (group.is_alone()) return;
  settle();
  std::vector<at::Tensor> indices = gather_rows(group, index(), what + " (numbers)");
  std::vector<at::Tensor> parts = gather_rows(group, rows(), what);
  indices_.clear();
  parts_.clear();
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (indices[rank].numel() == 0) continue;
    indices_.push_back(std::move(indices[rank]));
    parts_.push_back(std::move(parts[rank]));
  }
  settled_ = parts_.empty();
}

}  // namespace dalle2
