// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <barrier>
#include <thread>

#include "base/error.h"
#include "data/loader/loader.h"

namespace dalle2::test {

inline std::vector<std::string> all_of(const ShardUrls& urls) {
  std::vector<std::string> all;
  for (size_t i = 0; i < urls.size(); ++i) all.push_back(urls[i]);
  return all;
}

/// Options over FOLDER/shards/00000.tar and so on.
inline LoaderOptions options_over(const std::string& folder, int64_t shards, int64_t batch_size) {
  LoaderOptions options;
  options.batch_size = batch_size;
  std::vector<std::string> urls;
  for (int64_t shard = 0; shard < shards; ++shard)
    urls.push_back(fmt::format("{}/shards/{:05d}.tar", folder, shard));
  options.urls = std::move(urls);
  return options;
}

inline ShardDataConfig config_with(int64_t workers) {
  ShardDataConfig config;
  config.num_workers = workers;
  return config;
}

/// The keys of what is left of an epoch, batch by batch.
template <class Loader>
std::vector<std::vector<std::string>> keys_of(Loader& loader, size_t most = 100000) {
  std::vector<std::vector<std::string>> batches;
  while (batches.size() < most) {
    auto batch = loader.next();
    if (!batch) break;
    batches.push_back(std::move(batch->keys));
  }
  return batches;
}

inline std::vector<std::string> flat(const std::vector<std::vector<std::string>>& batches) {
  std::vector<std::string> keys;
  for (const auto& batch : batches) keys.insert(keys.end(), batch.begin(), batch.end());
  return keys;
}

/// The keys of a whole epoch.
inline std::vector<std::string> keys_of_epoch(ShardLoader& loader, int64_t epoch = 0) {
  loader.start_epoch(epoch);
  return flat(keys_of(loader));
}

/// The first batch of an epoch.
inline Batch first_of(ShardLoader& loader, int64_t epoch = 0) {
  loader.start_epoch(epoch);
  std::optional<Batch> batch = loader.next();
  D2_CHECK(batch, "epoch {} has no batch", epoch);
  return *std::move(batch);
}

/// @throws the first of them; what ended a rank by itself comes before what ended others for its sake
inline void rethrow_cause(const std::vector<std::exception_ptr>& errors) {
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

/// The loaders of `world` ranks, a thread each while a step is taken.
class RankWalk {
 public:
  /// @param config its num_workers are shared among the ranks (one each at least), as they run on
  /// one machine here; the order does not depend on them
  /// @param options of any rank: `rank` and `share_sizes` are set here
  /// @throws ConfigError, DataError
  RankWalk(const ShardDataConfig& config, const LoaderOptions& options, int world) {
    D2_CHECK(world > 0, "{} ranks", world);
    ShardDataConfig shared = config;
    if (shared.num_workers > 0)
      shared.num_workers = std::max<int64_t>(shared.num_workers / world, 1);
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

  void start_epoch(int64_t epoch, const LoaderPosition& position = {}) {
    for (auto& loader : loaders_) loader->start_epoch(epoch, position);
    position_ = position;
    sizes_.assign(loaders_.size(), 0);
  }
  /// The batches of the next step, one a rank; none at the end of the epoch, which all ranks reach
  /// together.
  /// @throws what ShardLoader::next() throws, as soon as no rank reads any more
  std::optional<std::vector<Batch>> next() {
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
    for (const auto& batch : batches)
      D2_CHECK(batch.has_value() == any, "ranks disagree on the end of the epoch");
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
  /// Where the epoch stands after the last step: each rank knows it of its own lanes only.
  const LoaderPosition& position() const { return position_; }

 private:
  std::vector<std::unique_ptr<ShardLoader>> loaders_;
  LoaderPosition position_;
  std::optional<std::barrier<>> step_;  // all ranks of a step meet here
  std::vector<int64_t> sizes_;          // of the ranks in this step
};

}  // namespace dalle2::test
