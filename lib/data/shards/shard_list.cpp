// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shards.h"
#include "data/shards/url_patterns.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

constexpr const char* kUrlKey = "/data/webdataset_base_url";
/// Shards that a message lists by number.
constexpr size_t kMostToldShards = 8;
/// Absent ones that a message names.
constexpr size_t kMostToldAbsent = 3;
/// Of an address that a message shows; braces may list any number of names.
constexpr size_t kMostToldBytes = 300;
constexpr std::string_view kBetween = "::";

/// A template's placeholder, as the config checks it.
bool has_placeholder(const std::string& text) {
  return text.find("{}") != std::string::npos;
}

/// Are local files there? Each folder is listed once.
class FileFinder {
 public:
  bool finds(const std::string& url) {
    const std::filesystem::path path = local_path(url);
    const auto [folder, added] = folders_.try_emplace(path.parent_path().string());
    if (added) list(path.parent_path(), folder->second);
    return folder->second.contains(path.filename().string());
  }

 private:
  static void list(const std::filesystem::path& folder, std::unordered_set<std::string>& names) {
    for (const std::string& name : names_in_folder(folder.string())) names.insert(name);
  }

  std::map<std::string, std::unordered_set<std::string>> folders_;
};

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

}  // namespace

std::string short_shards(const std::vector<std::string>& texts) {
  if (texts.empty()) return "an empty list";
  // In what may be shown of a text only addresses stand between two "::".
  size_t count = 0;
  std::string first;
  for (const std::string& text : texts) {
    const std::string list = public_url(text);
    for (size_t begin = 0, end = 0; end < list.size(); begin = end + kBetween.size(), ++count) {
      end = std::min(list.find(kBetween, begin), list.size());
      if (count == 0) first = list.substr(begin, end - begin);
    }
  }
  if (first.size() > kMostToldBytes) first = as_utf8(first.substr(0, kMostToldBytes)) + "...";
  if (count <= 1) return first;
  return fmt::format("{} and {} more", first, with_commas(static_cast<int64_t>(count - 1)));
}

/// The shards of a template, or of one pattern of a list.
struct ShardList::Section {
  int64_t begin = 0, size = 0;  // positions
  bool local = false;           // may have local files
  std::optional<UrlTemplate> numbered;
  int64_t first_number = 0;                    // of a template
  std::optional<std::vector<int64_t>> listed;  // existing numbers of a template
  std::optional<BracePattern> pattern;
  std::shared_ptr<const PictureShards> pictures;  // of a folder

  std::string url(int64_t index) const {
    if (pictures) return pictures->url(index);
    return numbered ? numbered->with(first_number + index)
                    : pattern->at(static_cast<uint64_t>(index));
  }
};

ShardList::ShardList(const ShardDataConfig& config) : texts_(config.webdataset_base_url.values()) {
  if (config.folder) {
    texts_ = {*config.folder};
    Section section;
    section.pictures = PictureShards::of(*config.folder, config.order_of_folder());
    section.size = size_ = section.pictures->size();
    sections_.push_back(std::move(section));
    return;
  }
  const bool single = config.webdataset_base_url.is_one();
  const auto add = [this](Section section, const std::string& first_url) {
    section.begin = size_;
    section.local = is_local_url(first_url);
    if (section.numbered) section.listed = existing_numbers(*section.numbered);
    size_ += section.size;
    if (size_ >= static_cast<int64_t>(BracePattern::kMost)) {
      throw ConfigError("{}: {} stands for {} shards or more.\n  Give a smaller range.",
                        kUrlKey,
                        shown(),
                        with_commas(static_cast<int64_t>(BracePattern::kMost)));
    }
    sections_.push_back(std::move(section));
  };
  for (const std::string& text : texts_) {
    const bool braces = text.find('{') != std::string::npos || text.find("::") != std::string::npos;
    if (has_placeholder(text) || (single && !braces)) {
      Section section;
      section.numbered = parse_url_template(text, config.shard_width, kUrlKey);
      section.first_number = config.start_shard;
      section.size = std::max<int64_t>(config.end_shard - config.start_shard + 1, 0);
      add(std::move(section), text);
      continue;
    }
    const bool braces_may_make_the_scheme = text.find('{') < text.find(':');
    for (BracePattern& pattern : url_patterns(text, kUrlKey)) {
      Section section;
      section.size = static_cast<int64_t>(pattern.size());
      const std::string first = pattern.at(0);
      section.pattern = std::move(pattern);
      add(std::move(section), first);
      if (braces_may_make_the_scheme) sections_.back().local = true;
    }
  }
}

ShardList::~ShardList() = default;

const ShardList::Section& ShardList::section_of(int64_t position) const {
  D2_CHECK(position >= 0 && position < size_, "shard {} of {}", position, size_);
  const auto behind = std::upper_bound(
      sections_.begin(), sections_.end(), position, [](int64_t at, const Section& section) {
        return at < section.begin;
      });
  return *(behind - 1);
}

std::string ShardList::url(int64_t position) const {
  const Section& section = section_of(position);
  return section.url(position - section.begin);
}

std::vector<uint32_t> ShardList::existing(const std::vector<uint32_t>& positions) const {
  const auto is_open = [](const Section& each) { return !each.local && !each.listed; };
  if (std::all_of(sections_.begin(), sections_.end(), is_open)) return positions;
  FileFinder files;
  const auto exists = [&](int64_t position) {
    const Section& section = section_of(position);
    const int64_t index = position - section.begin;
    if (is_open(section)) return true;
    if (!section.listed) {
      const std::string url = section.url(index);
      return !is_local_url(url) || files.finds(url);
    }
    return std::binary_search(
        section.listed->begin(), section.listed->end(), section.first_number + index);
  };
  std::vector<uint32_t> found;
  std::copy_if(positions.begin(), positions.end(), std::back_inserter(found), exists);
  return found;
}

const char* ShardList::key() const {
  if (sections_.size() != 1) return kUrlKey;
  return sections_[0].pictures   ? "/data/folder"
         : sections_[0].numbered ? "/data/end_shard"
                                 : kUrlKey;
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
  std::sort(numbers.begin(), numbers.end());
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

int64_t ShardUrls::number(size_t index) const {
  return shard_number((*this)[index]);
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
  std::sort(positions.begin(), positions.end());
  std::sort(found.begin(), found.end());
  std::vector<uint32_t> absent;
  std::set_difference(
      positions.begin(), positions.end(), found.begin(), found.end(), std::back_inserter(absent));
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

}  // namespace dalle2
