// SPDX-License-Identifier: MIT
#include "data/shards.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

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

/// The fewest shards of one rank that fill every split, as advice.
std::string enough_shards_advice(const SplitConfig& splits, int world) {
  for (int64_t n = 1; n <= 10000; ++n) {
    if (!empty_split(split_sizes(splits, n))) {
      return fmt::format("At least {} shards are needed with these splits", n * world);
    }
  }
  return "No number of shards fills all three with these splits";
}

/// A url template cut at its only placeholder.
struct UrlTemplate {
  std::string before, after;
  int64_t width = 0;

  std::string with(int64_t shard) const {
    return before + fmt::format("{:0{}}", shard, static_cast<int>(width)) + after;
  }
};

/// Width of the placeholder `body` (what stands between the braces), none if it is not one of ours.
std::optional<int64_t> placeholder_width(const std::string& body, int64_t shard_width) {
  std::string format = body;
  if (!format.empty() && format[0] == '0') format.erase(0, 1);
  if (format.empty()) return shard_width;
  if (format.front() != ':' || format.back() != 'd' || format.size() > 5) return std::nullopt;
  const std::string digits = format.substr(1, format.size() - 2);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return digits.empty() ? 0 : std::stoll(digits);
}

UrlTemplate parse_template(const std::string& base, int64_t shard_width) {
  UrlTemplate url;
  bool found = false;
  for (size_t i = 0; i < base.size(); ++i) {
    std::string& out = found ? url.after : url.before;
    const char c = base[i];
    if ((c == '{' || c == '}') && i + 1 < base.size() && base[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = base.find('}', i);
      const std::string body = end == std::string::npos ? "" : base.substr(i + 1, end - i - 1);
      const auto width = placeholder_width(body, shard_width);
      if (end == std::string::npos || !width || found) {
        throw ConfigError(
            "/data/webdataset_base_url: \"{}\" has {} at character {}.\n"
            "  Write {{}} once, where the padded shard number stands, and {{{{ for a plain brace.",
            base,
            found ? "a second placeholder" : "an unknown placeholder",
            i + 1);
      }
      url.width = *width;
      found = true;
      i = end;
    } else {
      out += c;
    }
  }
  if (!found) {
    throw ConfigError(
        "/data/webdataset_base_url: \"{}\" has no {{}} to take the shard number, so all shards "
        "would be "
        "one file.\n  Write for example \"folder/{{}}.tar\".",
        base);
  }
  return url;
}

/// The shard numbers for which a file of the template exists, ascending: one listing of the folder.
std::vector<int64_t> existing_shards(const UrlTemplate& url) {
  namespace fs = std::filesystem;
  const std::string before = local_path(url.before);
  const size_t slash = before.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : before.substr(0, slash + 1);
  const std::string prefix = before.substr(folder.size());
  // With the number in a folder's name, the rest of the path is asked for afterwards.
  const size_t tail = std::min(url.after.find('/'), url.after.size());
  const std::string suffix = url.after.substr(0, tail);

  std::vector<int64_t> shards;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
        !name.ends_with(suffix)) {
      continue;
    }
    const std::string digits =
        name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    const int64_t shard = std::stoll(digits);
    const std::string path = local_path(url.with(shard));
    if (path == folder + name + url.after.substr(tail) && fs::exists(path, error)) {
      shards.push_back(shard);
    }
    error.clear();
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

/// "3 files match folder/{}.tar: shards 0 to 2" for messages.
std::string describe_existing(const std::vector<int64_t>& existing) {
  if (existing.empty()) return "no such file exists";
  return fmt::format("{} such {}: shards {} to {}",
                     with_commas(static_cast<int64_t>(existing.size())),
                     existing.size() == 1 ? "file exists" : "files exist",
                     existing.front(),
                     existing.back());
}

}  // namespace

ShardSplit split_shards(const DecoderDataConfig& config, int64_t seed, RankInfo rank) {
  D2_CHECK(rank.world > 0 && rank.rank >= 0 && rank.rank < rank.world,
           "rank {} of {}",
           rank.rank,
           rank.world);
  const int64_t all = std::max<int64_t>(config.end_shard - config.start_shard + 1, 0);
  const int64_t per_rank = all / rank.world;
  if (per_rank == 0) {
    throw ConfigError(
        "/data/end_shard: Not enough shards to split evenly: {} for {} ranks (start_shard {}, "
        "end_shard "
        "{}).\n  Give each rank at least one shard, or start fewer ranks.",
        all,
        rank.world,
        config.start_shard,
        config.end_shard);
  }
  const SplitSizes sizes = split_sizes(config.splits, per_rank);
  if (const auto name = empty_split(sizes)) {
    throw ConfigError(
        "/data/splits/{}: no shard is left for the split \"{}\": {} shards{} of start_shard {} to "
        "end_shard {} give {} train, {} val, {} test.\n  {}; make more and smaller shards, or "
        "change "
        "the shares.",
        *name,
        *name,
        per_rank,
        rank.world > 1 ? " a rank" : "",
        config.start_shard,
        config.end_shard,
        sizes.train,
        sizes.val,
        sizes.test,
        enough_shards_advice(config.splits, rank.world));
  }

  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  const at::Tensor order = at::randperm(per_rank, generator, at::TensorOptions().dtype(at::kLong));
  const int64_t* permuted = order.const_data_ptr<int64_t>();
  const int64_t first = config.start_shard + rank.rank * per_rank;
  ShardSplit split;
  split.train.reserve(static_cast<size_t>(sizes.train));
  for (int64_t i = 0; i < per_rank; ++i) {
    // Differs from what the names suggest, and is the reference's: test comes before val.
    std::vector<int64_t>& part = i < sizes.train                ? split.train
                                 : i < sizes.train + sizes.test ? split.test
                                                                : split.val;
    part.push_back(first + permuted[i]);
  }
  return split;
}

std::string shard_url(const std::string& base, int64_t shard, int64_t shard_width) {
  return parse_template(base, shard_width).with(shard);
}

int64_t shard_number(const std::string& address) {
  const std::string url = public_url(address);  // a query may hold slashes
  const size_t slash = url.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const std::string digits = url.substr(begin, url.find('.', begin) - begin);
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return -1;
  }
  return std::stoll(digits);
}

std::vector<std::string> shard_urls(const DecoderDataConfig& config,
                                    const std::vector<int64_t>& shards,
                                    const std::string& split) {
  const UrlTemplate url = parse_template(config.webdataset_base_url, config.shard_width);
  std::vector<std::string> urls;
  if (!is_local_url(config.webdataset_base_url)) {
    urls.reserve(shards.size());
    for (const int64_t shard : shards) urls.push_back(url.with(shard));
    return urls;
  }
  const std::vector<int64_t> existing = existing_shards(url);
  for (const int64_t shard : shards) {
    if (std::binary_search(existing.begin(), existing.end(), shard))
      urls.push_back(url.with(shard));
  }
  if (urls.empty()) {
    throw DataError(
        "none of the {} shards of the split \"{}\" exists: {} ({}).\n  {}",
        with_commas(static_cast<int64_t>(shards.size())),
        split,
        config.webdataset_base_url,
        describe_existing(existing),
        existing.empty()
            ? "Point /data/webdataset_base_url at the shards; {} is the shard number padded to "
              "/data/shard_width digits."
            : fmt::format(
                  "Set /data/start_shard to {} and /data/end_shard to {}, so that the splits "
                  "are cut from what is there.",
                  existing.front(),
                  existing.back()));
  }
  const int64_t absent = static_cast<int64_t>(shards.size() - urls.size());
  if (absent > 0) {
    log_warning("data",
                "{}: {} of {} shards are absent ({}: {})",
                split,
                with_commas(absent),
                with_commas(static_cast<int64_t>(shards.size())),
                config.webdataset_base_url,
                describe_existing(existing));
  }
  return urls;
}

}  // namespace dalle2
