// SPDX-License-Identifier: MIT
#include "data/shards/deal.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "data/pictures/preprocess.h"

namespace dalle2 {
namespace {

using Numbers = std::vector<size_t>;

uint64_t hash_of_path(const std::string& path, int64_t seed) {
  SampleRandom bits(seed, 0, "deal", path, 0);
  const uint64_t high = bits(), low = bits();
  return high << 32 | low;
}

/// Mixes the pictures of one folder.
/// @param paths sorted @param chosen sorted numbers of paths that all begin with the same `depth` bytes
Numbers mix(const std::vector<std::string>& paths,
            int64_t seed,
            const Numbers& chosen,
            size_t depth = 0) {
  std::vector<std::pair<double, size_t>> places;  // in [0, 1), of a picture
  // Even distances, from a random first place on.
  const auto spread = [&](const Numbers& part, const std::string& folder) {
    const double first = static_cast<double>(hash_of_path(folder, seed) >> 11) * 0x1p-53;
    const auto count = static_cast<double>(part.size());
    for (size_t i = 0; i < part.size(); ++i)
      places.emplace_back((static_cast<double>(i) + first) / count, part[i]);
  };
  Numbers files;
  for (auto begin = chosen.begin(), end = begin; begin != chosen.end(); begin = end) {
    const std::string& path = paths[*begin];
    const size_t slash = path.find('/', depth);
    ++end;
    if (slash == std::string::npos) {
      files.push_back(*begin);
      continue;
    }
    const std::string folder = path.substr(0, slash + 1);
    while (end != chosen.end() && paths[*end].starts_with(folder)) ++end;
    spread(mix(paths, seed, Numbers(begin, end), slash + 1), folder);
  }
  std::ranges::sort(
      files, {}, [&](size_t i) { return std::pair(hash_of_path(paths[i], seed), i); });
  if (!files.empty()) spread(files, paths[files.front()].substr(0, depth));
  std::ranges::sort(places);
  Numbers mixed;
  for (const auto& [place, picture] : places) mixed.push_back(picture);
  return mixed;
}

std::vector<Numbers> cut(const Numbers& order, size_t per_shard) {
  std::vector<Numbers> shards;
  for (size_t begin = 0; begin < order.size(); begin += per_shard) {
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    shards.emplace_back(
        first, first + static_cast<std::ptrdiff_t>(std::min(per_shard, order.size() - begin)));
  }
  return shards;
}

std::vector<Numbers> deal_folders(const std::vector<std::string>& paths,
                                  const DealOptions& options,
                                  size_t shard_count) {
  std::map<std::string, Numbers> folders;  // a picture without one is its own
  for (size_t i = 0; i < paths.size(); ++i) {
    const size_t slash = paths[i].rfind('/');
    folders[slash == std::string::npos ? paths[i] : paths[i].substr(0, slash + 1)].push_back(i);
  }
  if (folders.size() == 1 && paths.size() > 1) {
    throw ConfigError(
        "together: expected several lowest folders, found {} with all {} pictures: they would be "
        "one shard\n  Mix them, or sort them into folders.",
        printable(folders.begin()->first),
        paths.size());
  }
  std::vector<std::tuple<size_t, uint64_t, const Numbers*>> by_size;
  for (const auto& [name, numbers] : folders)
    by_size.emplace_back(paths.size() - numbers.size(), hash_of_path(name, options.seed), &numbers);
  std::ranges::sort(by_size);
  std::vector<Numbers> shards(std::min(shard_count, folders.size()));
  using Fill = std::pair<size_t, size_t>;  // pictures so far, shard
  std::priority_queue<Fill, std::vector<Fill>, std::greater<>> fills;
  for (size_t i = 0; i < shards.size(); ++i) fills.emplace(0, i);
  for (const auto& [left, hash, numbers] : by_size) {
    auto [pictures, shard] = fills.top();
    fills.pop();
    std::copy(numbers->begin(), numbers->end(), std::back_inserter(shards[shard]));
    fills.emplace(pictures + numbers->size(), shard);
  }
  for (Numbers& shard : shards) {
    std::ranges::sort(shard);
    shard = mix(paths, options.seed, shard);
  }
  return shards;
}

}  // namespace

std::vector<std::vector<size_t>> deal(const std::vector<std::string>& paths,
                                      const DealOptions& options) {
  size_t most = 1;
  for (int64_t i = 0; i < options.index_width && most < 1'000'000'000; ++i) most *= 10;
  const size_t per_shard = options.per_shard == 0
                               ? std::clamp<size_t>((paths.size() + 9) / 10, 1, 1000)
                               : static_cast<size_t>(options.per_shard);
  if (options.per_shard < 0 || per_shard > most) {
    throw ConfigError(
        "{} samples per shard: expected 1 to {}, as many as {} digits of the index can count.",
        options.per_shard,
        most,
        options.index_width);
  }
  std::vector<Numbers> shards;
  if (options.order == FolderOrder::together) {
    shards = deal_folders(paths, options, (paths.size() + per_shard - 1) / per_shard);
  } else {
    Numbers order(paths.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (options.order == FolderOrder::mixed) order = mix(paths, options.seed, order);
    shards = cut(order, per_shard);
  }
  for (const Numbers& shard : shards) {
    if (shard.size() <= most) continue;
    throw ConfigError(
        "together: a shard would hold {} pictures; expected at most {}, as many as {} digits of the "
        "index can count\n  Divide the folder of {}.",
        shard.size(),
        most,
        options.index_width,
        printable(paths[shard.front()]));
  }
  return shards;
}

}  // namespace dalle2
