// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "data/loader/loader.h"

namespace dalle2::test {

inline std::vector<std::string> all_of(const ShardUrls& urls) {
  std::vector<std::string> all;
  for (size_t i = 0; i < urls.size(); ++i) all.push_back(urls[i]);
  return all;
}

/// Options over FOLDER/shards/00000.tar and so on.
inline LoaderOptions options_over(const std::string& folder, int64_t shards, int64_t batch_size) {
  LoaderOptions options;
  options.batch_size = batch_size;
  std::vector<std::string> urls;
  for (int64_t shard = 0; shard < shards; ++shard) {
    urls.push_back(fmt::format("{}/shards/{:05d}.tar", folder, shard));
  }
  options.urls = std::move(urls);
  return options;
}

inline ShardDataConfig config_with(int64_t workers) {
  ShardDataConfig config;
  config.num_workers = workers;
  return config;
}

/// The keys of what is left of an epoch, batch by batch.
template <class Loader>
std::vector<std::vector<std::string>> keys_of(Loader& loader, size_t most = 100000) {
  std::vector<std::vector<std::string>> batches;
  while (batches.size() < most) {
    auto batch = loader.next();
    if (!batch) break;
    batches.push_back(std::move(batch->keys));
  }
  return batches;
}

inline std::vector<std::string> flat(const std::vector<std::vector<std::string>>& batches) {
  std::vector<std::string> keys;
  for (const auto& batch : batches) keys.insert(keys.end(), batch.begin(), batch.end());
  return keys;
}

}  // namespace dalle2::test
