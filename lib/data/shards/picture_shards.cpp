// SPDX-License-Identifier: MIT
#include "data/shards/picture_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/untrusted_text.h"
#include "data/shards/captions.h"
#include "data/shards/deal.h"
#include "data/shards/shards.h"

namespace dalle2 {
namespace {

constexpr const char* kScheme = "folder:";
constexpr int64_t kLeastShards = 30, kMostShards = 100;  // unless a shard would be too large
constexpr int64_t kUsualInShard = 20, kMostInShard = 1000;

/// Of a url of PictureShards.
struct FolderPart {
  FolderOrder order = FolderOrder::mixed;
  std::string folder;
};

FolderPart part_of(const std::string& url) {
  const size_t begin = std::string_view(kScheme).size();
  const size_t end = url.find(':', begin);
  const std::string order = url.substr(begin, end - begin);
  const auto& names = enum_names<FolderOrder>;
  const auto index = std::ranges::find(names, order) - names.begin();
  return {static_cast<FolderOrder>(index), url.substr(end + 1, url.rfind('/') - end - 1)};
}

/// "cats/tom.jpg" -> "cats/tom_jpg_0000120003": a key ends at the first dot, and its last digits are
/// the row of its embeddings.
std::string key_of(const FolderPicture& picture, int64_t shard, int64_t index) {
  std::string key = as_utf8(picture.source);
  std::ranges::replace(key, '.', '_');
  return fmt::format("{}_{:0{}}{:0{}}", key, shard, kShardWidth, index, kIndexWidth);
}

/// What `read` gives, or nothing and a warning: one file that cannot be read costs no other.
template <class Read>
auto read_or_warn(const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const DataError& error) {
    constexpr const char* kEnds[] = {"", "\n  Others like it are not named."};
    static std::atomic<int> left = 10;  // each epoch reads them again
    if (const int now = --left; now >= 0)
      log_warning("data", "{}{}", error.what(), kEnds[now == 0]);
    return {};
  }
}

class FolderMembers : public MemberSource {
 public:
  FolderMembers(std::vector<FolderPicture> pictures,
                std::shared_ptr<const FolderCaptions> captions,
                std::string caption_encoding,
                int64_t shard,
                uint64_t first_picture)
      : pictures_(std::move(pictures)),
        captions_(std::move(captions)),
        caption_encoding_(std::move(caption_encoding)),
        shard_(shard),
        next_(first_picture) {}

  bool next(TarMember& member) override {
    if (caption_) {
      member = {key_ + ".txt", *std::exchange(caption_, std::nullopt)};
      return true;
    }
    if (next_ >= pictures_.size()) return false;
    const FolderPicture& picture = pictures_[next_];
    key_ = key_of(picture, shard_, static_cast<int64_t>(next_));
    ++next_;
    std::string content = read_or_warn([&] { return read_picture(picture); });
    // One of no kind that we read, or that cannot be read, is counted as a broken picture.
    const std::string field = picture_field(content).value_or("jpg");
    caption_ = read_or_warn(
        [&] { return captions_->of(picture.path, picture.source, caption_encoding_); });
    member = {key_ + "." + field, std::move(content)};
    return true;
  }
  std::optional<uint64_t> member_offset() const override { return next_ - 1; }

 private:
  std::vector<FolderPicture> pictures_;
  std::shared_ptr<const FolderCaptions> captions_;
  std::string caption_encoding_;
  int64_t shard_;
  uint64_t next_;
  std::string key_;
  std::optional<std::string> caption_;
};

}  // namespace

std::optional<std::string> picture_field(const std::string& content) {
  if (content.starts_with("\xff\xd8")) return "jpg";
  if (content.starts_with("\x89PNG")) return "png";
  if (content.starts_with("RIFF") && content.size() > 12 && content.compare(8, 4, "WEBP") == 0) {
    return "webp";
  }
  return std::nullopt;
}

PictureShards::PictureShards(const std::string& folder, FolderOrder order)
    : folder_(folder), captions_(std::make_shared<const FolderCaptions>()), order_(order) {
  pictures_ = list_pictures(folder, Tars::kPassOver).pictures;
  // Shards of a few pictures have uneven shares of small folders, and few shards suit few processes.
  const int64_t wanted = std::clamp(pictures() / kUsualInShard, kLeastShards, kMostShards);
  const int64_t per_shard =
      std::clamp<int64_t>((pictures() + wanted - 1) / wanted, 1, kMostInShard);
  std::vector<std::string> paths;
  for (const FolderPicture& picture : pictures_) paths.push_back(picture.source);
  shards_ = deal(paths, {.order = order, .per_shard = per_shard});
}

std::shared_ptr<const PictureShards> PictureShards::of(const std::string& folder,
                                                       FolderOrder order) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, FolderOrder>, std::weak_ptr<const PictureShards>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const PictureShards>& entry = known[{folder, order}];
  std::shared_ptr<const PictureShards> shards = entry.lock();
  if (!shards) entry = shards = std::make_shared<const PictureShards>(folder, order);
  return shards;
}

const FolderPicture& PictureShards::picture(int64_t shard, int64_t index) const {
  return pictures_.at(shards_.at(static_cast<size_t>(shard)).at(static_cast<size_t>(index)));
}

std::string PictureShards::url(int64_t shard) const {
  Fnv1a<uint32_t> hash;
  for (const size_t i : shards_.at(static_cast<size_t>(shard))) hash.add_line(pictures_[i].source);
  return fmt::format("{}{}:{}/{:0{}}.{}.tar",
                     kScheme,
                     enum_names<FolderOrder>[static_cast<size_t>(order_)],
                     folder_,
                     shard,
                     kShardWidth,
                     hash.hex());
}

std::vector<std::string> PictureShards::urls() const {
  std::vector<std::string> all;
  for (int64_t shard = 0; shard < size(); ++shard) all.push_back(url(shard));
  return all;
}

std::unique_ptr<MemberSource> PictureShards::open(int64_t shard,
                                                  uint64_t first_picture,
                                                  const std::string& caption_encoding) const {
  std::vector<FolderPicture> chosen;
  for (const size_t i : shards_.at(static_cast<size_t>(shard))) chosen.push_back(pictures_[i]);
  return std::make_unique<FolderMembers>(
      std::move(chosen), captions_, caption_encoding, shard, first_picture);
}

bool is_picture_shard(const std::string& url) {
  return url.starts_with(kScheme);
}

std::string shown_shard(const std::string& url) {
  if (!is_picture_shard(url)) return public_url(url);
  return fmt::format("{} (virtual shard {})", part_of(url).folder, shard_number(url));
}

std::shared_ptr<const PictureShards> listing_of(const std::string& url) {
  if (!is_picture_shard(url)) return nullptr;
  const auto [order, folder] = part_of(url);
  return PictureShards::of(folder, order);
}

std::string picture_of(const std::string& url, const std::string& key) {
  if (!is_picture_shard(url)) return "";
  const int64_t index = std::stoll(key.substr(key.size() - kIndexWidth));
  return listing_of(url)->picture(shard_number(url), index).path.string();
}

std::unique_ptr<MemberSource> open_picture_shard(const std::string& url,
                                                 uint64_t first_picture,
                                                 const std::string& caption_encoding) {
  const auto shards = listing_of(url);
  const int64_t shard = shard_number(url);
  if (shard < 0 || shard >= shards->size() || shards->url(shard) != url) {
    throw DataError(
        "{}: the pictures of the folder have changed since the run began\n  Start the "
        "run again, or put the pictures back.",
        part_of(url).folder);
  }
  return shards->open(shard, first_picture, caption_encoding);
}

}  // namespace dalle2
