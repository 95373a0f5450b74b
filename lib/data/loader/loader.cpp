// SPDX-License-Identifier: MIT
#include "data/loader/loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "data/loader/lane_loader.h"
#include "data/shards/picture_shards.h"

namespace dalle2 {
namespace {

/// Appends `{"rank":..,"split":..,"epoch":..,"keys":[..]}` to DALLE2_TRACE_SAMPLES.rankR, if the
/// variable is set. A line is written in one piece, so several loaders of a rank may share the file.
void trace_samples(int rank, const std::string& split, int64_t epoch, const Batch& batch) {
  const char* base = std::getenv("DALLE2_TRACE_SAMPLES");
  if (base == nullptr || *base == '\0') return;
  const Json record = {{"rank", rank}, {"split", split}, {"epoch", epoch}, {"keys", batch.keys}};
  const std::string line = json_line(record) + "\n";
  const std::string path = fmt::format("{}.rank{}", base, rank);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written) {
    throw DataError("DALLE2_TRACE_SAMPLES: {} cannot be written: {}.", path, errno_text(reason));
  }
}

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

ShardLoader::ShardLoader(const ShardDataConfig& config, LoaderOptions options)
    : config_(config), options_(std::move(options)) {
  if (options_.urls.empty()) {
    throw DataError("the split \"{}\" has no shards.\n  Make more shards, or change /data/splits.",
                    options_.split);
  }
  make_lanes(options_.lanes.value_or(options_.rank.world));
}

ShardLoader::~ShardLoader() = default;

/// The loaders of this rank's lanes, of `count` in all.
void ShardLoader::make_lanes(int64_t count) {
  lanes_.clear();
  lanes_.resize(static_cast<size_t>(count));
  const int64_t world = options_.rank.world;
  const int64_t own = std::max<int64_t>((count - options_.rank.rank + world - 1) / world, 1);
  ShardDataConfig config = config_;
  if (config.num_workers > 0) config.num_workers = std::max<int64_t>(config.num_workers / own, 1);
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  for (int64_t lane = options_.rank.rank; lane < count; lane += world) {
    const auto [begin, end] = shards_of_lane(lane, count, shards);
    if (begin == end) continue;
    LoaderOptions part = options_;
    part.urls = options_.urls.part(static_cast<size_t>(begin), static_cast<size_t>(end));
    part.lane = {static_cast<int>(lane), static_cast<int>(count)};
    lanes_[static_cast<size_t>(lane)] = std::make_unique<LaneLoader>(config, std::move(part));
  }
}

void ShardLoader::start_epoch(int64_t epoch, const LoaderPosition& position) {
  from_beginning_ = position.lanes.empty();
  const size_t count = from_beginning_
                           ? static_cast<size_t>(options_.lanes.value_or(options_.rank.world))
                           : position.lanes.size();
  if (count != lanes_.size()) make_lanes(static_cast<int64_t>(count));
  position_ = position;
  position_.shard_names = options_.shard_names;
  position_.lanes.resize(count);
  over_.assign(count, false);
  epoch_ = epoch;
  had_empty_step_ = false;
  for (size_t lane = 0; lane < count; ++lane) {
    if (lanes_[lane]) lanes_[lane]->start_epoch(epoch, position_.lanes[lane]);
  }
  started_ = true;
}

/// This rank's share of the step that begins with `first_lane`: none if it has no lane in it, or
/// one that is out.
std::optional<Batch> ShardLoader::next_of_step(int64_t first_lane) {
  const size_t lane = static_cast<size_t>(first_lane + options_.rank.rank);
  // Lanes that had their turn in this round have it again in the next.
  if (lane >= lanes_.size() || static_cast<int64_t>(lane) < position_.next_lane)
    return std::nullopt;
  if (!lanes_[lane] || over_[lane]) return std::nullopt;
  std::optional<Batch> batch = lanes_[lane]->next();
  if (batch) {
    if (options_.check_batch && batch->size() > 0) options_.check_batch(*batch);
    position_.lanes[lane] = batch->position.lanes.front();
  } else {
    over_[lane] = true;
  }
  return batch;
}

/// Takes this rank's batch of a step, if it has one. @return the samples of all ranks' batches
std::vector<int64_t> ShardLoader::share_sizes(std::optional<Batch>& batch, int64_t first_lane) {
  if (!options_.share_sizes) {
    batch = next_of_step(first_lane);
    return {batch ? batch->size() : 0};
  }
  // A rank that throws here has told the others first: they would wait for it.
  int64_t own = 0;
  std::exception_ptr fault;
  try {
    batch = next_of_step(first_lane);
    own = batch ? batch->size() : 0;
  } catch (const StoppedError&) {
    own = LoaderOptions::kStopAsked;
  } catch (const Error&) {
    own = LoaderOptions::kFault;
    fault = std::current_exception();
  }
  std::vector<int64_t> sizes = options_.share_sizes(own);
  if (fault) std::rethrow_exception(fault);
  for (const int64_t size : sizes) {
    if (size == LoaderOptions::kStopAsked) throw_stopped();
    if (size == LoaderOptions::kFault) throw StoppedError("another rank cannot read its batch");
  }
  return sizes;
}

std::optional<Batch> ShardLoader::next() {
  D2_CHECK(started_, "start_epoch() comes before next()");
  const int64_t lanes = static_cast<int64_t>(lanes_.size());
  const int64_t world = options_.rank.world;
  // A whole round, and what was left of the one before, without a batch for anyone is the end.
  for (int64_t quiet = 0; quiet < 2 * ((lanes + world - 1) / world); ++quiet) {
    const int64_t first_lane = position_.next_lane / world * world;
    std::optional<Batch> batch;
    const std::vector<int64_t> sizes = share_sizes(batch, first_lane);
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    position_.next_lane = first_lane + world < lanes ? first_lane + world : 0;
    if (all == 0) continue;
    if (!batch) {
      batch.emplace();
      had_empty_step_ = true;
    }
    batch->samples_of_step = all;
    batch->row = std::accumulate(sizes.begin(), sizes.begin() + options_.rank.rank, position_.row);
    position_.row += all;
    batch->position = position_;
    return batch;
  }
  finish();
  return std::nullopt;
}

void ShardLoader::consumed(const Batch& batch) const {
  trace_samples(options_.rank.rank, options_.split, epoch_, batch);
}

/// What an epoch without one usable sample in it means.
void ShardLoader::finish() const {
  int64_t placed = 0;
  DropCounts dropped;
  for (const auto& lane : lanes_) {
    if (!lane) continue;
    placed += lane->placed();
    for (const auto& [reason, count] : lane->dropped_in_epoch()) dropped[reason] += count;
  }
  if (placed > 0 || !from_beginning_ || had_empty_step_ || options_.share.rank > 0) return;
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  const std::string all = counted(shards, "shard"), first = options_.urls[0];
  const std::string message = fmt::format(
      "the split \"{}\" has no usable sample in {} ({} ...): {}.\n  {}",
      options_.split,
      shards > options_.most_shards ? fmt::format("the first {} of {}", options_.most_shards, all)
                                    : all,
      shown_shard(first),
      describe_drops(dropped),
      is_picture_shard(first) ? "The warnings name the pictures and what is wrong with them."
      : dropped.contains(drop::kWrongEmbeddingShape)
          ? "The warnings say which widths were found and expected."
          : "`dalle2-train shards check` shows what is wrong with the shards and "
            "their embeddings.");
  if (!options_.may_be_empty) throw DataError("{}", message);
  log_warning("data", "{}", message);
}

DropCounts ShardLoader::dropped() const {
  DropCounts all;
  for (const auto& lane : lanes_) {
    if (!lane) continue;
    for (const auto& [reason, count] : lane->dropped()) all[reason] += count;
  }
  return all;
}

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
