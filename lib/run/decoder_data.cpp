// SPDX-License-Identifier: MIT
#include "run/decoder_data.h"

#include <torch/types.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/absent_shards.h"
#include "data/decoder_dataset.h"
#include "data/shards.h"
#include "run/device_copy.h"

namespace dalle2 {

namespace {

/// Shards in a row without a usable sample after which a dry run gives up on a data set.
constexpr int64_t kMostShardsTried = 8;

/// @throws DataError if more of the training shards are absent than /data/max_bad_fraction allows
void check_absent(const DecoderDataConfig& data,
                  const ShardList& list,
                  const std::vector<uint32_t>& positions,
                  int64_t found) {
  const int64_t named = static_cast<int64_t>(positions.size());
  const int64_t absent = named - found;
  if (static_cast<double>(absent) <= data.max_bad_fraction * static_cast<double>(named)) return;
  throw DataError(
      "train: {} of {} {} absent, more than /data/max_bad_fraction {:g} allows: {}.\n"
      "  Bring them back, name only those that are there, or allow more.",
      with_commas(absent),
      counted(named, "shard"),
      absent == 1 ? "is" : "are",
      data.max_bad_fraction,
      absent_shards(list, positions, list.existing(positions)));
}

void as_if_alone(LoaderOptions& options) {
  options.rank = {};
  options.share_sizes = nullptr;
}

}  // namespace

DecoderData::DecoderData(const TrainDecoderConfig& config,
                         const DecoderPlan& plan,
                         RankInfo rank,
                         const at::Device& device)
    : config_(config) {
  const auto list = std::make_shared<const ShardList>(config.data);
  // A slice for each lane, as in the reference for each rank: the loader gives each of its lanes an
  // even part of them.
  const int slices = static_cast<int>(config.data.lanes.value_or(rank.world));
  ShardSplit shards;
  for (int each = 0; each < slices; ++each) {
    const ShardSplit slice = split_shards(config.data.splits, *list, config.seed, {each, slices});
    shards.train.insert(shards.train.end(), slice.train.begin(), slice.train.end());
    shards.val.insert(shards.val.end(), slice.val.begin(), slice.val.end());
    shards.test.insert(shards.test.end(), slice.test.begin(), slice.test.end());
  }
  if (const int64_t rest = list->size() % slices; rest > 0) {
    log_info("data",
             "{} left over at the end, so that all ranks have as many",
             counted(rest, "shard is", "shards are"));
  }
  train_ = shard_urls(list, shards.train, "train");
  check_absent(config.data, *list, shards.train, static_cast<int64_t>(train_.size()));
  val_ = shard_urls(list, shards.val, "val");
  test_ = shard_urls(list, shards.test, "test");
  needs_.need_image_embeds = !config.decoder.unconditional;
  needs_.need_text_encodings = plan.text_conditioned();
  needs_.image_embed_dim = plan.stages.front().unet.image_embed_dim;
  if (config.decoder.unconditional) needs_.image_embed_dim.reset();
  for (const UnetPlan& stage : plan.stages) {
    if (stage.unet.cond_on_text_encodings.value_or(false))
      needs_.text_embed_dim = stage.unet.text_embed_dim;
  }
  needs_.need_latents = config.data.latents_in_tar;
  if (needs_.need_latents) {
    const UnetPlan& first = plan.stages.front();
    needs_.latent_side = first.map_side(first.image_size);
  }
  needs_.seed = config.seed;
  needs_.shard_width = config.data.shard_width;
  needs_.rank = rank;
  needs_.lanes = config.data.lanes;
  needs_.pin_memory = device.is_cuda();
}

void DecoderData::keep_step_through(ProcessGroup& group) {
  if (group.is_alone()) return;
  needs_.share_sizes = [&group](int64_t own) {
    std::vector<int64_t> sizes;
    for (const auto& row : group.exchange({own}, "samples of the step")) sizes.push_back(row[0]);
    return sizes;
  };
}

LoaderOptions DecoderData::options(const std::string& split,
                                   int64_t batch_size,
                                   bool in_order) const {
  LoaderOptions options = needs_;
  options.split = split;
  options.urls = split == "train" ? train_ : split == "val" ? val_ : test_;
  options.batch_size = batch_size;
  options.may_be_empty =
      split == "val";  // an epoch of training is not lost for want of a validation
  options.shuffle = split == "train" && config_.data.shuffle_train && !in_order;
  options.resample = split == "train" && config_.data.resample_train && !in_order;
  if (split == "train" && !in_order)
    options.shuffle_buffer = config_.data.training_shuffle_buffer();
  return options;
}

std::unique_ptr<DecoderLoader> DecoderData::loader(const std::string& split,
                                                   int64_t batch_size,
                                                   bool in_order) const {
  return std::make_unique<DecoderLoader>(config_.data, options(split, batch_size, in_order));
}

std::unique_ptr<DecoderLoader> DecoderData::loader_of_share(const std::string& split,
                                                            int64_t count,
                                                            int64_t batch_size,
                                                            const RankInfo& share) const {
  LoaderOptions needs = options(split, batch_size, /*in_order=*/true);
  needs.split = "evaluated samples of " + split;  // not trained on, in messages and in the trace
  needs.may_be_empty = true;
  as_if_alone(needs);
  needs.most_samples = count;
  needs.share = share;
  needs.lanes.reset();  // shard after shard, so that the batch size does not change the order
  return std::make_unique<DecoderLoader>(config_.data, needs);
}

std::optional<Batch> DecoderData::examples(const std::string& split, int64_t count) const {
  DecoderDataConfig data = config_.data;
  data.num_workers = 0;  // a handful of samples: nothing may be decoded ahead
  LoaderOptions needs = options(split, std::max<int64_t>(count, 1), /*in_order=*/true);
  needs.split = "pictures of " + split;   // not samples trained on, in messages and in the trace
  needs.may_be_empty = split != "train";  // pictures for the logs are no reason to stop
  as_if_alone(needs);                     // of all samples
  DecoderLoader loader(data, needs);      // checks the embeddings even for no examples
  if (count == 0) return std::nullopt;
  loader.start_epoch(0);
  std::optional<Batch> batch = loader.next();
  if (batch) loader.consumed(*batch);
  return batch;
}

void DecoderData::check_usable(const std::string& split) const {
  DecoderDataConfig data = config_.data;
  data.num_workers = 0;       // no more is read than needed
  data.max_bad_fraction = 1;  // that limit is for the whole split
  LoaderOptions first = options(split, /*batch_size=*/1, /*in_order=*/true);
  first.most_shards = kMostShardsTried;
  as_if_alone(first);
  DecoderLoader loader(data, first);
  loader.start_epoch(0);
  loader.next();
}

int64_t DecoderData::count_samples(const std::string& split) const {
  DecoderDataset dataset(config_.data, options(split, config_.data.batch_size, /*in_order=*/true));
  dataset.start_epoch(0);
  int64_t count = 0;
  for (Candidate candidate; dataset.next(candidate);) ++count;
  return count;
}

int64_t DecoderData::num_shards(const std::string& split) const {
  return static_cast<int64_t>((split == "train" ? train_ : split == "val" ? val_ : test_).size());
}

int64_t DecoderData::num_shards() const {
  return num_shards("train") + num_shards("val") + num_shards("test");
}

DecoderInputs to_inputs(const Batch& batch, const at::Device& device) {
  return copied_to(
      device, DecoderInputs{batch.images, batch.image_embeds, batch.text_encodings, batch.latents});
}

}  // namespace dalle2
