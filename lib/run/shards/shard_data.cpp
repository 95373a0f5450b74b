// SPDX-License-Identifier: MIT
#include "run/shards/shard_data.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/this_process.h"
#include "data/loader/shard_dataset.h"
#include "data/shards/shards.h"
#include "run/device/device.h"

namespace dalle2 {

namespace {

/// Shards in a row without a usable sample after which a dry run gives up on a data set.
constexpr int64_t kMostShardsTried = 8;

void check_absent(const ShardDataConfig& data,
                  const ShardList& list,
                  const std::vector<uint32_t>& positions,
                  int64_t found) {
  const int64_t named = static_cast<int64_t>(positions.size());
  const int64_t absent = named - found;
  if (static_cast<double>(absent) <= data.max_bad_fraction * static_cast<double>(named)) return;
  throw DataError(
      "train: {} of {} {} absent, more than /data/max_bad_fraction {:g} allows: {}.\n  {}",
      with_commas(absent),
      counted(named, "shard"),
      absent == 1 ? "is" : "are",
      data.max_bad_fraction,
      absent_shards(list, positions, list.existing(positions)),
      list.advice(positions, "train"));
}

void as_if_alone(LoaderOptions& options) {
  options.rank = {};
  options.lanes.reset();  // shard after shard
  options.share_sizes = nullptr;
}

}  // namespace

ShardData::ShardData(const ShardDataConfig& config,
                     int64_t seed,
                     LoaderOptions needs,
                     const at::Device& device,
                     RankInfo rank)
    : config_(config), needs_(std::move(needs)), list_(std::make_shared<const ShardList>(config)) {
  needs_.seed = seed;
  needs_.shard_width = config.shard_width;
  needs_.rank = rank;
  needs_.lanes = config.lanes;
  needs_.gpu = gpu_of(device);
  slices_ = slices_at_begin();
}

void ShardData::deal(std::optional<int64_t> given) {
  const int64_t slices = given.value_or(slices_at_begin());
  ShardSplit shards;
  for (int64_t each = 0; each < slices; ++each) {
    const RankInfo slice = {static_cast<int>(each), static_cast<int>(slices)};
    const ShardSplit dealt = split_shards(config_.splits, *list_, needs_.seed, slice);
    shards.train.insert(shards.train.end(), dealt.train.begin(), dealt.train.end());
    shards.val.insert(shards.val.end(), dealt.val.begin(), dealt.val.end());
    shards.test.insert(shards.test.end(), dealt.test.begin(), dealt.test.end());
  }
  if (const int64_t rest = list_->size() % slices; rest > 0) {
    log_info("data",
             "{} left over at the end, so that all ranks have as many",
             counted(rest, "shard is", "shards are"));
  }
  train_ = shard_urls(list_, shards.train, "train");
  check_absent(config_, *list_, shards.train, static_cast<int64_t>(train_.size()));
  val_ = shard_urls(list_, shards.val, "val");
  test_ = shard_urls(list_, shards.test, "test");
  train_names_ = shard_names_hash(train_);
  names_ = fmt::format("{} {} {}", train_names_, shard_names_hash(val_), shard_names_hash(test_));
  slices_ = slices;
}

void ShardData::keep_step_through(ProcessGroup& group) {
  if (group.is_alone()) return;
  needs_.share_sizes = [&group](int64_t own) {
    std::vector<int64_t> sizes;
    for (const auto& row : group.exchange({own}, "samples of the step")) sizes.push_back(row[0]);
    return sizes;
  };
}

LoaderOptions ShardData::options(const std::string& split,
                                 int64_t batch_size,
                                 bool in_order) const {
  LoaderOptions options = needs_;
  options.split = split;
  std::shared_ptr<DropCounts>& told = told_[split];
  if (!told) told = std::make_shared<DropCounts>();
  options.told = told;
  D2_CHECK(!names_.empty(), "deal() comes before options()");
  options.urls = urls(split);
  if (split == "train") options.shard_names = train_names_;
  options.batch_size = batch_size;
  options.may_be_empty =
      split == "val";  // an epoch of training is not lost for want of a validation
  options.shuffle = split == "train" && config_.shuffle_train && !in_order;
  options.resample = split == "train" && config_.resample_train && !in_order;
  if (split == "train" && !in_order) options.shuffle_buffer = config_.training_shuffle_buffer();
  return options;
}

std::unique_ptr<ShardLoader> ShardData::loader(const std::string& split,
                                               int64_t batch_size,
                                               bool in_order) const {
  LoaderOptions needs = options(split, batch_size, in_order);
  needs.byte_pictures = needs.gpu.has_value();  // copy_to_device() makes floats of them
  return std::make_unique<ShardLoader>(config_, needs);
}

std::unique_ptr<ShardLoader> ShardData::loader_of_share(const std::string& split,
                                                        int64_t count,
                                                        int64_t batch_size,
                                                        const RankInfo& share) const {
  LoaderOptions needs = options(split, batch_size, /*in_order=*/true);
  needs.split = "evaluated samples of " + split;  // not trained on, in messages and in the trace
  needs.may_be_empty = true;
  as_if_alone(needs);
  needs.most_samples = count;
  needs.share = share;
  return std::make_unique<ShardLoader>(config_, needs);
}

std::optional<Batch> ShardData::examples(const std::string& split, int64_t count) const {
  ShardDataConfig data = config_;
  data.num_workers = 0;  // a handful of samples: nothing may be decoded ahead
  LoaderOptions needs = options(split, std::max<int64_t>(count, 1), /*in_order=*/true);
  needs.split = "pictures of " + split;   // not samples trained on, in messages and in the trace
  needs.may_be_empty = split != "train";  // pictures for the logs are no reason to stop
  as_if_alone(needs);                     // of all samples
  ShardLoader loader(data, needs);        // checks the embeddings even for no examples
  if (count == 0) return std::nullopt;
  loader.start_epoch(0);
  std::optional<Batch> batch = loader.next();
  if (batch) loader.consumed(*batch);
  return batch;
}

void ShardData::check_usable(const std::string& split) const {
  ShardDataConfig data = config_;
  data.num_workers = 0;       // no more is read than needed
  data.max_bad_fraction = 1;  // that limit is for the whole split
  LoaderOptions first = options(split, /*batch_size=*/1, /*in_order=*/true);
  first.most_shards = kMostShardsTried;
  as_if_alone(first);
  ShardLoader loader(data, first);
  loader.start_epoch(0);
  loader.next();
}

int64_t ShardData::count_samples(const std::string& split,
                                 DropCounts& dropped,
                                 PictureTally* pictures) const {
  ShardDataset dataset(config_, options(split, config_.batch_size, /*in_order=*/true));
  dataset.start_epoch(0);
  DropCounts total;
  int64_t count = 0;
  for (bool found = true; found;) {
    Candidate candidate;
    found = dataset.next(candidate);
    candidate.dropped_before.report(split, total, dropped);
    count += found ? 1 : 0;
    if (found && pictures != nullptr && !pictures->look_at(candidate.picture)) pictures = nullptr;
  }
  return count;
}

void ShardData::for_each_caption(
    const std::string& split, const std::function<bool(const std::string& caption)>& more) const {
  LoaderOptions needs = options(split, config_.batch_size, /*in_order=*/true);
  as_if_alone(needs);
  ShardDataset dataset(config_, needs);
  dataset.start_epoch(0);
  for (Candidate candidate; dataset.next(candidate);) {
    if (stop_requested() != 0) throw_stopped();
    sign_of_life();
    if (!more(candidate.caption)) return;
  }
}

const ShardUrls& ShardData::urls(const std::string& split) const {
  return split == "train" ? train_ : split == "val" ? val_ : test_;
}

int64_t ShardData::num_shards(const std::string& split) const {
  return static_cast<int64_t>(urls(split).size());
}

int64_t ShardData::num_shards() const {
  std::vector<uint32_t> all(static_cast<size_t>(list_->size()));
  std::iota(all.begin(), all.end(), 0U);
  return static_cast<int64_t>(list_->existing(all).size());
}

std::shared_ptr<const PictureShards> ShardData::pictures() const {
  return config_.folder ? PictureShards::of(*config_.folder, config_.order_of_folder()) : nullptr;
}

std::optional<std::string> ShardData::other_shards(const LoaderPosition& position) const {
  return dalle2::other_shards(position, train_, train_names_);
}

}  // namespace dalle2
