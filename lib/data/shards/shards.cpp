// SPDX-License-Identifier: MIT
#include "data/shards/shards.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/public_url.h"
#include "base/text.h"
#include "data/shards/picture_shards.h"
#include "io/streams/url_source.h"

namespace dalle2 {
namespace {

struct SplitSizes {
  int64_t train = 0, val = 0, test = 0;
};

/// nearbyint in the default rounding mode is Python's round: halves go to the even neighbour.
SplitSizes split_sizes(const SplitConfig& splits, int64_t shards) {
  const double n = static_cast<double>(shards);
  SplitSizes sizes;
  sizes.train = static_cast<int64_t>(std::nearbyint(splits.train * n));
  sizes.test = static_cast<int64_t>(std::nearbyint(splits.test * n));
  sizes.val = shards - sizes.train - sizes.test;
  return sizes;
}

std::optional<std::string> empty_split(const SplitSizes& sizes) {
  if (sizes.train <= 0) return "train";
  if (sizes.val <= 0) return "val";
  if (sizes.test <= 0) return "test";
  return std::nullopt;
}

/// The next larger number of shards of one rank that fills every split, as advice: a larger number
/// may fail where a smaller one does not, since halves are rounded to the even neighbour.
std::string enough_shards_advice(const SplitConfig& splits, int64_t per_rank, int world) {
  for (int64_t n = per_rank + 1; n <= per_rank + 10000; ++n) {
    if (!empty_split(split_sizes(splits, n))) {
      return fmt::format("{} enough with these splits",
                         counted(n * world, "shard is", "shards are"));
    }
  }
  return "No number of shards fills all three splits with these shares";
}

}  // namespace

SplitConfig first_splits(int64_t shards) {
  constexpr int64_t kTenth = 10;
  constexpr double kDigits = 1e6;  // of a share
  const auto other = static_cast<double>(std::max<int64_t>(1, shards / kTenth));
  const double share = std::round(kDigits * other / static_cast<double>(shards));
  return {
      .train = (kDigits - 2 * share) / kDigits, .val = share / kDigits, .test = share / kDigits};
}

std::optional<ShardSplit> split_positions(const SplitConfig& splits, int64_t shards, int64_t seed) {
  const SplitSizes sizes = split_sizes(splits, shards);
  if (empty_split(sizes)) return std::nullopt;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  const bool fits = shards <= std::numeric_limits<int32_t>::max();  // same draws, half the memory
  const at::Tensor order =
      at::randperm(shards, generator, at::TensorOptions().dtype(fits ? at::kInt : at::kLong));
  ShardSplit split;
  split.train.reserve(static_cast<size_t>(sizes.train));
  split.val.reserve(static_cast<size_t>(sizes.val));
  split.test.reserve(static_cast<size_t>(sizes.test));
  for (int64_t i = 0; i < shards; ++i) {
    // Differs from what the names suggest, and is the reference's: test comes before val.
    std::vector<uint32_t>& part = i < sizes.train                ? split.train
                                  : i < sizes.train + sizes.test ? split.test
                                                                 : split.val;
    const int64_t place =
        fits ? order.const_data_ptr<int32_t>()[i] : order.const_data_ptr<int64_t>()[i];
    part.push_back(static_cast<uint32_t>(place));
  }
  return split;
}

ShardSplit split_shards(const SplitConfig& splits,
                        const ShardList& list,
                        int64_t seed,
                        RankInfo rank) {
  D2_CHECK(rank.world > 0 && rank.rank >= 0 && rank.rank < rank.world,
           "rank {} of {}",
           rank.rank,
           rank.world);
  const int64_t all = list.size();
  const int64_t per_rank = all / rank.world;
  if (per_rank == 0) {
    throw ConfigError(
        "{}: Not enough shards to split evenly: {} for {} ({}).\n"
        "  Give each rank at least one shard, or start fewer ranks.",
        list.key(),
        all,
        counted(rank.world, "rank"),
        list.origin());
  }
  const SplitSizes sizes = split_sizes(splits, per_rank);
  if (const auto name = empty_split(sizes)) {
    throw ConfigError(
        "/data/splits/{}: no shard is left for the split \"{}\": {}{} of {} make {} train, {} val, "
        "{} test.\n"
        "  {}; make more and smaller shards, or change the shares.",
        *name,
        *name,
        counted(per_rank, "shard"),
        rank.world > 1 ? " a rank" : "",
        list.origin(),
        sizes.train,
        sizes.val,
        sizes.test,
        enough_shards_advice(splits, per_rank, rank.world));
  }

  ShardSplit split = *split_positions(splits, per_rank, seed);
  const auto first = static_cast<uint32_t>(rank.rank * per_rank);
  for (std::vector<uint32_t>* part : {&split.train, &split.val, &split.test}) {
    for (uint32_t& position : *part) position += first;
  }
  return split;
}

std::string shard_names_hash(const ShardUrls& urls) {
  Fnv1a<uint64_t> hash;
  for (size_t i = 0; i < urls.size(); ++i) hash.add_line(url_file_name(urls[i]));
  return hash.hex();
}

std::optional<std::string> other_shards(const LoaderPosition& position,
                                        const ShardUrls& urls,
                                        const std::string& shard_names) {
  const auto lanes = static_cast<int64_t>(position.lanes.size());
  const auto shards = static_cast<int64_t>(urls.size());
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto [begin, end] = shards_of_lane(lane, lanes, shards);
    const int64_t then = position.lanes[static_cast<size_t>(lane)].shards;
    if (then == 0 || then == end - begin) continue;
    return fmt::format("lane {} of {} had {}, and would now have {} of {}",
                       lane,
                       lanes,
                       counted(then, "shard"),
                       end - begin,
                       shards);
  }
  if (position.shard_names.empty() || position.shard_names == shard_names) return std::nullopt;
  return fmt::format("the names of the {} ({} ...) have the hash {}, those of the position {}",
                     counted(shards, "shard"),
                     shown_shard(urls.front()),
                     shard_names,
                     position.shard_names);
}

std::unique_ptr<SampleReader> open_shard(const std::string& url,
                                         MemberWarning warn,
                                         const SourceOptions& options,
                                         const std::string& caption_encoding) {
  if (is_picture_shard(url)) {
    return std::make_unique<SampleReader>(open_picture_shard(url, options.offset, caption_encoding),
                                          std::move(warn));
  }
  const std::string origin = is_local_url(url) ? local_path(url) : public_url(url);
  return std::make_unique<SampleReader>(
      open_source(url, options), origin, std::move(warn), options.offset);
}

}  // namespace dalle2
