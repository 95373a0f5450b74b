// SPDX-License-Identifier: MIT
#include "data/loader/rank_walk.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"

namespace dalle2 {
namespace {

/// @throws the first of them; what ended a rank by itself comes before what ended others for its sake
void rethrow_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr stopped;
  for (const std::exception_ptr& error : errors) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const StoppedError&) {
      if (!stopped) stopped = error;
    }
  }
  if (stopped) std::rethrow_exception(stopped);
}

}  // namespace

RankWalk::RankWalk(const ShardDataConfig& config, const LoaderOptions& options, int world) {
  D2_CHECK(world > 0, "{} ranks", world);
  ShardDataConfig shared = config;
  if (shared.num_workers > 0) {
    shared.num_workers = std::max<int64_t>(shared.num_workers / world, 1);
  }
  for (int rank = 0; rank < world; ++rank) {
    LoaderOptions own = options;
    own.rank = {rank, world};
    if (world > 1) {
      own.share_sizes = [this, at = static_cast<size_t>(rank)](int64_t size) {
        sizes_[at] = size;
        step_->arrive_and_wait();
        std::vector<int64_t> told = sizes_;
        step_->arrive_and_wait();  // before anybody gives the next size
        return told;
      };
    }
    loaders_.push_back(std::make_unique<ShardLoader>(shared, std::move(own)));
  }
}

void RankWalk::start_epoch(int64_t epoch, const LoaderPosition& position) {
  for (auto& loader : loaders_) loader->start_epoch(epoch, position);
  position_ = position;
  sizes_.assign(loaders_.size(), 0);
}

std::optional<std::vector<Batch>> RankWalk::next() {
  std::vector<std::optional<Batch>> batches(loaders_.size());
  std::vector<std::exception_ptr> errors(loaders_.size());
  step_.emplace(std::ssize(loaders_));
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < loaders_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          batches[rank] = loaders_[rank]->next();
        } catch (...) {
          errors[rank] = std::current_exception();
          step_->arrive_and_drop();  // nobody waits for it
        }
      });
    }
  }
  rethrow_cause(errors);
  const bool any = batches.front().has_value();
  for (const auto& batch : batches) {
    D2_CHECK(batch.has_value() == any, "ranks disagree on the end of the epoch");
  }
  if (!any) return std::nullopt;
  std::vector<LoaderPosition> positions;
  std::vector<Batch> step;
  for (size_t rank = 0; rank < batches.size(); ++rank) {
    loaders_[rank]->consumed(*batches[rank]);
    positions.push_back(batches[rank]->position);
    step.push_back(*std::move(batches[rank]));
  }
  position_ = join_positions(positions);
  return step;
}

DropCounts RankWalk::dropped() const {
  DropCounts all;
  for (const auto& loader : loaders_) {
    for (const auto& [reason, count] : loader->dropped()) all[reason] += count;
  }
  return all;
}

}  // namespace dalle2
