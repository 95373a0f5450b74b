// SPDX-License-Identifier: MIT
#include "metrics/known_features.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "net/sha256.h"

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
  return rows_.contains(hash_text(hash));
}

NamedFeatures KnownFeatures::at(const at::Tensor& hashes) const {
  NamedFeatures found;
  for (size_t place = 0; place < names_.size(); ++place) {
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < hashes.size(0); ++i) {
      rows.push_back(rows_.at(hash_text(hashes[i]))[place]);
    }
    found[names_[place]] = at::stack(rows);
  }
  return found;
}

void KnownFeatures::add(const at::Tensor& hashes, const NamedFeatures& features) {
  for (int64_t i = 0; i < hashes.size(0); ++i) {
    std::vector<at::Tensor> row;
    for (const std::string& name : names_) row.push_back(features.at(name)[i].clone());
    has_news_ |= rows_.emplace(hash_text(hashes[i]), std::move(row)).second;
  }
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
        throw DataError("\"{}\" is damaged: its sum is another one", name);
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
  for (const auto& [hash, row] : rows_) hashes.push_back(as_row(hash).to(at::kByte));
  tensors.emplace_back(kHashes, at::stack(hashes));
  for (size_t place = 0; place < names_.size(); ++place) {
    std::vector<at::Tensor> rows;
    for (const auto& [hash, row] : rows_) rows.push_back(row[place]);
    tensors.emplace_back(names_[place], at::stack(rows));
  }
  std::map<std::string, std::string> metadata = {{kIdentity, identity_}};
  for (const auto& [name, tensor] : tensors) metadata[kSumOf + name] = sum_of(tensor);
  write_safetensors(path_in(folder), tensors, metadata);
  has_news_ = false;
}

}  // namespace dalle2
