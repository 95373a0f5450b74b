// SPDX-License-Identifier: MIT
#include "data/loader/rank_walk.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"

namespace dalle2 {
namespace {

/// Ends the step of a rank that waited for one that failed.
struct OtherRankFailed {};

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
        return meet(at, size);
      };
    }
    loaders_.push_back(std::make_unique<ShardLoader>(shared, std::move(own)));
  }
}

void RankWalk::start_epoch(int64_t epoch, const LoaderPosition& position) {
  for (auto& loader : loaders_) loader->start_epoch(epoch, position);
  position_ = position;
  waiting_ = 0;
  sizes_.assign(loaders_.size(), 0);
  left_ = false;
}

std::optional<std::vector<Batch>> RankWalk::next() {
  std::vector<std::optional<Batch>> batches(loaders_.size());
  std::vector<std::exception_ptr> errors(loaders_.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < loaders_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          batches[rank] = loaders_[rank]->next();
        } catch (const OtherRankFailed&) {
        } catch (...) {
          errors[rank] = std::current_exception();
          leave();
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
  take_positions(batches);
  std::vector<Batch> step;
  for (size_t rank = 0; rank < batches.size(); ++rank) {
    loaders_[rank]->consumed(*batches[rank]);
    step.push_back(*std::move(batches[rank]));
  }
  return step;
}

/// The barrier of a step, at which all say how many samples they have.
std::vector<int64_t> RankWalk::meet(size_t rank, int64_t size) {
  std::unique_lock lock(mutex_);
  if (left_) throw OtherRankFailed{};
  sizes_[rank] = size;
  const int64_t round = round_;
  if (++waiting_ == loaders_.size()) {
    told_ = sizes_;
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
    return told_;
  }
  changed_.wait(lock, [&] { return round_ != round || left_; });
  if (round_ == round) throw OtherRankFailed{};
  return told_;
}

void RankWalk::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

void RankWalk::take_positions(const std::vector<std::optional<Batch>>& batches) {
  std::vector<LoaderPosition> positions;
  for (const auto& batch : batches) positions.push_back(batch->position);
  position_ = join_positions(positions);
}

DropCounts RankWalk::dropped() const {
  DropCounts all;
  for (const auto& loader : loaders_) {
    for (const auto& [reason, count] : loader->dropped()) all[reason] += count;
  }
  return all;
}

}  // namespace dalle2
