// SPDX-License-Identifier: MIT
#include "data/shards/shards.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "data/shards/picture_shards.h"
#include "data/shards/url_patterns.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

constexpr const char* kUrlKey = "/data/webdataset_base_url";
/// Shards that a message lists by number.
constexpr size_t kMostToldShards = 8;
/// Absent ones that a message names.
constexpr size_t kMostToldAbsent = 3;
/// Of a config. More would be a slip of the pen.
constexpr int64_t kMostListedShards = 100'000'000;

/// A template's placeholder, as the config checks it.
bool has_placeholder(const std::string& text) {
  return text.find("{}") != std::string::npos;
}

/// If files of the template are there with another number of digits: what to do about it.
std::optional<std::string> other_width_found(const UrlTemplate& url) {
  if (!is_local_url(url.before + url.after)) return std::nullopt;
  constexpr int64_t kMostDigits = 18;
  // A number without a leading zero fits a smaller width as well: the width that most files have counts.
  UrlTemplate found = url, other = url;
  std::vector<int64_t> most;
  for (other.width = 1; other.width <= kMostDigits; ++other.width) {
    std::vector<int64_t> numbers = existing_numbers(other).value_or(std::vector<int64_t>());
    if (numbers.empty() || numbers.size() < most.size()) continue;
    most = std::move(numbers);
    found.width = other.width;
  }
  if (most.empty()) return std::nullopt;
  return fmt::format("{} has a number padded to {}, and /data/shard_width is {}: set it to {}.",
                     found.with(most.front()),
                     counted(found.width, "digit"),
                     url.width,
                     found.width);
}

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

/// The shards of one text: of a template, or named.
struct ShardList::Section {
  int64_t begin = 0, size = 0;  // positions
  bool local = false;           // may have local files
  std::optional<UrlTemplate> numbered;
  int64_t first_number = 0;                    // of a template
  std::optional<std::vector<int64_t>> listed;  // existing numbers of a template
  std::vector<std::string> urls;               // without a template

  std::string url(int64_t index) const {
    return numbered ? numbered->with(first_number + index) : urls.at(static_cast<size_t>(index));
  }
};

ShardList::ShardList(const ShardDataConfig& config) : texts_(config.webdataset_base_url.values()) {
  if (config.folder) {
    texts_ = {*config.folder};
    pictures_ = PictureShards::of(*config.folder, config.order_of_folder());
    sections_.emplace_back().urls = pictures_->urls();
    sections_.back().size = size_ = pictures_->size();
    return;
  }
  const bool single = config.webdataset_base_url.is_one();
  for (const std::string& text : texts_) {
    Section& section = sections_.emplace_back();
    section.begin = size_;
    const bool braces = text.find('{') != std::string::npos || text.find("::") != std::string::npos;
    if (has_placeholder(text) || (single && !braces)) {
      section.numbered = parse_url_template(text, config.shard_width, kUrlKey);
      section.listed = existing_numbers(*section.numbered);
      section.first_number = config.start_shard;
      section.size = std::max<int64_t>(config.end_shard - config.start_shard + 1, 0);
      section.local = is_local_url(text);
    } else {
      section.urls = expand_urls(text, kUrlKey);
      section.size = std::ssize(section.urls);
      section.local = std::ranges::any_of(section.urls, is_local_url);
    }
    size_ += section.size;
    if (size_ < kMostListedShards) continue;
    throw ConfigError("{}: {} stands for {} shards or more.\n  Give a smaller range.",
                      kUrlKey,
                      shown(),
                      with_commas(kMostListedShards));
  }
}

ShardList::~ShardList() = default;

const ShardList::Section& ShardList::section_of(int64_t position) const {
  D2_CHECK(position >= 0 && position < size_, "shard {} of {}", position, size_);
  const auto behind = std::ranges::upper_bound(sections_, position, {}, &Section::begin);
  return *(behind - 1);
}

std::string ShardList::url(int64_t position) const {
  const Section& section = section_of(position);
  return section.url(position - section.begin);
}

std::vector<uint32_t> ShardList::existing(const std::vector<uint32_t>& positions) const {
  const auto is_open = [](const Section& each) { return !each.local && !each.listed; };
  if (std::ranges::all_of(sections_, is_open)) return positions;
  std::map<std::string, std::unordered_set<std::string>> folders;  // each is listed once
  const auto is_there = [&](const std::string& url) {
    const std::filesystem::path path = local_path(url);
    const auto [folder, added] = folders.try_emplace(path.parent_path().string());
    if (added) {
      for (const std::string& name : names_in_folder(folder->first)) folder->second.insert(name);
    }
    return folder->second.contains(path.filename().string());
  };
  const auto exists = [&](int64_t position) {
    const Section& section = section_of(position);
    const int64_t index = position - section.begin;
    if (is_open(section)) return true;
    if (!section.listed) {
      const std::string url = section.url(index);
      return !is_local_url(url) || is_there(url);
    }
    return std::ranges::binary_search(*section.listed, section.first_number + index);
  };
  std::vector<uint32_t> found;
  std::copy_if(positions.begin(), positions.end(), std::back_inserter(found), exists);
  return found;
}

const char* ShardList::key() const {
  if (sections_.size() != 1) return kUrlKey;
  return pictures_ ? "/data/folder" : sections_[0].numbered ? "/data/end_shard" : kUrlKey;
}

std::string ShardList::origin() const {
  if (sections_.size() == 1 && sections_[0].numbered) {
    const Section& section = sections_[0];
    return fmt::format("start_shard {} to end_shard {}",
                       section.first_number,
                       section.first_number + section.size - 1);
  }
  return shown();
}

std::string ShardList::shown() const {
  return short_shards(texts_);
}

std::string ShardList::describe_existing() const {
  if (sections_.size() != 1 || !sections_[0].listed) return "no such file exists";
  const std::vector<int64_t>& existing = *sections_[0].listed;
  if (existing.empty()) return "no such file exists";
  const std::string count =
      counted(static_cast<int64_t>(existing.size()), "such file exists", "such files exist");
  return existing.size() == 1
             ? fmt::format("{}: shard {}", count, existing.front())
             : fmt::format("{}: shards {} to {}", count, existing.front(), existing.back());
}

std::string ShardList::advice(const std::vector<uint32_t>& positions,
                              const std::string& split) const {
  if (sections_.size() != 1 || !sections_[0].listed) {
    return fmt::format("Check the paths of {}.", kUrlKey);
  }
  const Section& section = sections_[0];
  const std::vector<int64_t>& existing = *section.listed;
  if (existing.empty()) {
    if (has_placeholder(texts_.front())) {
      if (const auto other = other_width_found(*section.numbered)) return *other;
    }
    return fmt::format(
        "Point {} at the shards; {{}} is the shard number padded to /data/shard_width digits.",
        kUrlKey);
  }
  const int64_t last_number = section.first_number + section.size - 1;
  if (existing.front() > section.first_number || existing.back() < last_number) {
    return fmt::format(
        "Set /data/start_shard to {} and /data/end_shard to {}, so that the splits are made from "
        "the shards that exist.",
        existing.front(),
        existing.back());
  }
  std::vector<int64_t> numbers;
  for (const uint32_t position : positions) numbers.push_back(section.first_number + position);
  std::ranges::sort(numbers);
  const size_t told = std::min(numbers.size(), kMostToldShards);
  const std::string more =
      numbers.size() > told
          ? fmt::format(" and {} more", with_commas(static_cast<int64_t>(numbers.size() - told)))
          : "";
  return fmt::format(
      "By /seed and /data/splits \"{}\" takes {} {}{}: bring them back, or number the shards "
      "without gaps.",
      split,
      numbers.size() == 1 ? "shard" : "shards",
      fmt::join(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(told), ", "),
      more);
}

ShardUrls::ShardUrls(std::vector<std::string> urls) : urls_(std::move(urls)) {}

ShardUrls::ShardUrls(std::initializer_list<std::string> urls) : urls_(urls) {}

ShardUrls::ShardUrls(std::shared_ptr<const ShardList> list, std::vector<uint32_t> positions)
    : list_(std::move(list)),
      positions_(std::make_shared<const std::vector<uint32_t>>(std::move(positions))),
      count_(positions_->size()) {}

std::string ShardUrls::operator[](size_t index) const {
  D2_CHECK(index < size(), "url {} of {}", index, size());
  return list_ ? list_->url((*positions_)[first_ + index]) : urls_[index];
}

ShardUrls ShardUrls::part(size_t begin, size_t end) const {
  D2_CHECK(begin <= end && end <= size(), "urls {} to {} of {}", begin, end, size());
  ShardUrls urls = *this;
  if (list_) {
    urls.first_ += begin;
    urls.count_ = end - begin;
  } else {
    urls.urls_ = {urls_.begin() + static_cast<std::ptrdiff_t>(begin),
                  urls_.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  return urls;
}

std::string absent_shards(const ShardList& list,
                          std::vector<uint32_t> positions,
                          std::vector<uint32_t> found) {
  std::ranges::sort(positions);
  std::ranges::sort(found);
  std::vector<uint32_t> absent;
  std::ranges::set_difference(positions, found, std::back_inserter(absent));
  std::string text;
  for (size_t i = 0; i < std::min(absent.size(), kMostToldAbsent); ++i) {
    text += (i == 0 ? "" : ", ") + public_url(list.url(absent[i]));
  }
  if (absent.size() <= kMostToldAbsent) return text;
  return fmt::format(
      "{} and {} more", text, with_commas(static_cast<int64_t>(absent.size() - kMostToldAbsent)));
}

ShardUrls shard_urls(const std::shared_ptr<const ShardList>& list,
                     const std::vector<uint32_t>& positions,
                     const std::string& split) {
  std::vector<uint32_t> found = list->existing(positions);
  if (found.empty()) {
    throw DataError("none of the {} of the split \"{}\" exists: {} ({}).\n  {}",
                    counted(static_cast<int64_t>(positions.size()), "shard"),
                    split,
                    list->shown(),
                    list->describe_existing(),
                    list->advice(positions, split));
  }
  const int64_t absent = static_cast<int64_t>(positions.size() - found.size());
  if (absent > 0) {
    log_warning("data",
                "{}: {} of {} {} absent: {} ({}: {})",
                split,
                with_commas(absent),
                counted(static_cast<int64_t>(positions.size()), "shard"),
                absent == 1 ? "is" : "are",
                absent_shards(*list, positions, found),
                list->shown(),
                list->describe_existing());
  }
  return {list, std::move(found)};
}

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

bool is_absent_file(const std::string& url) {
  return is_local_url(url) && !path_exists(local_path(url));
}

std::string shard_names_hash(const ShardUrls& urls) {
  Fnv1a<uint64_t> hash;
  for (size_t i = 0; i < urls.size(); ++i) hash.add_line(url_file_name(urls[i]));
  return hash.hex();
}

std::optional<std::string> other_shards(const LoaderPosition& position,
                                        const ShardUrls& urls,
                                        const std::string& shard_names) {
  if (position.shard_names.empty() || position.shard_names == shard_names) return std::nullopt;
  return fmt::format("the names of the {} ({} ...) have the hash {}, those of the position {}",
                     counted(static_cast<int64_t>(urls.size()), "shard"),
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
  auto tar =
      std::make_unique<TarReader>(open_source(url, options), origin, TarLimits{}, options.offset);
  return std::make_unique<SampleReader>(std::move(tar), std::move(warn));
}

}  // namespace dalle2
