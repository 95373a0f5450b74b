// SPDX-License-Identifier: MIT
// How a run over shards starts: which shards belong to which split.
#include <torch/types.h>

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "run/shards/shard_run.h"

namespace dalle2 {

DataSize data_size_of(const ShardData& data) {
  if (const auto pictures = data.pictures()) {
    return {.count = pictures->pictures(), .unit = "picture", .names = pictures->names()};
  }
  return {data.num_shards(), "shard", [&data](const Cursor& root) {
            return data.num_shards(slices_of(root).value_or(data.slices()));
          }};
}

ShardRun::ShardRun(RunPlan plan, const MakeTrainer& make_trainer, const ShardRunPlan& shards)
    : TrainingRun(std::move(plan), std::make_unique<ShardPosition>(), make_trainer),
      loop_(shards.loop),
      data_config_(shards.data),
      position_(position_as<ShardPosition>()),
      data_(shards.data,
            session_.seed(),
            shards.needs,
            RankInfo{session_.group().rank(), session_.group().size()},
            session_.device()) {
  data_.keep_step_through(session_.group());
}

void ShardRun::open() {
  introduce();
}

void ShardRun::read_examples() {
  const int64_t slices = slices_of_earlier_run();
  session_.together("looking for the shards", [&] { deal_first(slices); });
  session_.check_same_data(data_.names(), "shards", "/data/webdataset_base_url");
  load_examples();
}

/// Slices of the run that this start will resume, or of one that begins; by what rank 0 sees.
int64_t ShardRun::slices_of_earlier_run() {
  int64_t slices = data_.slices_at_begin();
  session_.together("looking at what an earlier run left", [&] {
    if (!session_.group().is_main()) return;
    const std::optional<Value> earlier = checkpoints_.outline_of_earlier();
    try {
      if (earlier) slices = slices_of(Cursor(*earlier)).value_or(slices);
    } catch (const DataError&) {  // start() says so, and takes another file
    }
  });
  return std::stoll(session_.group().text_of_main(std::to_string(slices), "slices of the shards"));
}

/// As many slices as an earlier run had, unless this start's data are others that cannot be cut so:
/// start() finds out whether it resumes that run.
void ShardRun::deal_first(int64_t slices) {
  try {
    deal(slices);
  } catch (const ConfigError&) {
    if (slices == data_.slices_at_begin()) throw;
    deal(data_.slices_at_begin());
  }
}

void ShardRun::deal(int64_t slices) {
  data_.deal_into(slices);
  checkpoints_.set_data_size(data_size_of(data_));
  log_info("data",
           "shards: {} train, {} val, {} test; batches of {}{}",
           data_.num_shards("train"),
           data_.num_shards("val"),
           data_.num_shards("test"),
           data_config_.batch_size,
           of_each_rank(session_.group()));
}

/// A run keeps the slices that it began with, whatever the number of ranks: see
/// ShardPosition::slices.
void ShardRun::keep_slices() {
  int64_t slices = position_.slices_of_run();
  if (slices == 0) {
    slices = data_.slices_at_begin();
    if (position_.samples_seen > 0 && !data_config_.lanes && !position_.has_other_data) {
      log_warning("data",
                  "the checkpoint does not say into how many slices its run cut the shards: with "
                  "another number of processes than then, former validation shards are trained on. "
                  "/data/lanes gives the number");
    }
  }
  position_.slices = slices;
  if (slices == data_.slices()) return;
  deal(slices);
  load_examples();
}

}  // namespace dalle2
