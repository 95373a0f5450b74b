// SPDX-License-Identifier: MIT
// How the threads keep the order: the dataset hands out candidates under a lock, each with its
// number; threads decode them in any order; a decoded one waits until all before it are there, and
// only then gets its place in a batch. Places, batches, drops and errors therefore follow the
// numbers alone.
#include "data/loader/lane_loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "data/loader/open_batch.h"
#include "data/loader/shard_dataset.h"
#include "data/pictures/preprocess.h"
#include "io/pictures/image.h"

namespace dalle2 {
struct LaneLoader::State {
  /// A candidate on its way from the dataset to its batch.
  struct Item {
    int64_t number = 0;  // since the start, in the order of the epoch
    bool last = false;   // the end of the epoch, no sample
    Candidate candidate;
    Image picture;             // 8-bit, all transforms but ToTensor applied
    std::string fault;         // why the picture cannot be used
    std::exception_ptr error;  // what ends the epoch
  };

  /// A sample and its place.
  struct Placement {
    std::shared_ptr<OpenBatch> batch;
    int64_t place = 0;
    Item item;
  };

  State(const ShardDataConfig& config, LoaderOptions given)
      : options(std::move(given)),
        workers(config.num_workers),
        preprocess(config.preprocessing,
                   decode_options(config, options.channels),
                   config.max_transform_pixels),
        told(options.told ? options.told : std::make_shared<DropCounts>()),
        dataset(config, options) {
    // Two batches a thread, as the reference's prefetch_factor.
    window = 2 * std::max<int64_t>(workers, 1) * options.batch_size;
  }
  ~State() { stop(); }

  void start(int64_t new_epoch, const LanePosition& from);
  void stop();
  std::optional<Batch> next();

  bool work_once();
  bool reserve();
  bool fetch(Item& item);
  void prepare(Item& item) const;
  void give_place(Item&& item);
  bool is_hopeless(const Item& item);
  void assign(Item&& item, std::vector<Placement>& placements);
  bool front_is_ready() const { return !batches.empty() && batches.front()->is_ready(); }
  bool is_settled() const;
  std::optional<Batch> finish();
  void report(const DropLog& drops);

  const LoaderOptions options;
  const int64_t workers;
  const Preprocess preprocess;
  int64_t window = 0;
  int64_t epoch = 0;
  LanePosition first;  // where the epoch was resumed
  bool started = false;
  const std::shared_ptr<DropCounts> told;
  DropCounts dropped;        // of the caller's thread
  DropCounts epoch_dropped;  // the same, of this epoch
  std::vector<std::thread> threads;
  std::atomic<bool> stopping = false;

  std::mutex source_mutex;  // guards the next three
  ShardDataset dataset;
  int64_t next_number = 0;
  bool source_done = false;

  std::mutex mutex;                 // guards all below
  std::condition_variable room;     // in the window, for threads
  std::condition_variable ready;    // a batch, or the end, for the caller
  std::map<int64_t, Item> decoded;  // waiting for those before them
  int64_t next_to_assign = 0;
  int64_t in_flight = 0;   // candidates without a place yet
  int64_t placed = 0;      // samples of the epoch that got one
  int64_t broken = 0;      // pictures before the first of them
  int64_t unconsumed = 0;  // of them, not handed out yet
  DropLog carry;           // drops since the last closed batch
  std::deque<std::shared_ptr<OpenBatch>> batches;
  bool ended = false;
  std::exception_ptr error;
};

void LaneLoader::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  dataset.cancel();
  room.notify_all();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

void LaneLoader::State::start(int64_t new_epoch, const LanePosition& from) {
  stop();
  stopping = false;
  epoch = new_epoch;
  first = from;
  dataset.start_epoch(epoch, first);
  next_number = 0;
  source_done = false;
  decoded.clear();
  next_to_assign = in_flight = placed = broken = unconsumed = 0;
  carry = DropLog{};
  batches.clear();
  ended = false;
  error = nullptr;
  epoch_dropped.clear();
  started = true;
  for (int64_t i = 0; i < workers; ++i) {
    try {
      threads.emplace_back([this] {
        while (work_once()) {
        }
      });
    } catch (const std::system_error& fault) {
      if (threads.empty()) {
        throw ResourceError("a thread that reads the data cannot be started: {}", fault.what());
      }
      break;  // fewer will do
    }
  }
}

/// One candidate from the dataset to its batch. @return false if there is no more to do
bool LaneLoader::State::work_once() {
  if (!reserve()) return false;
  Item item;
  if (!fetch(item)) {
    const std::lock_guard lock(mutex);
    --in_flight;
    return false;
  }
  if (!item.last && !item.error) prepare(item);
  give_place(std::move(item));
  return true;
}

/// Waits for room in the window of candidates that are ahead of the caller.
bool LaneLoader::State::reserve() {
  std::unique_lock lock(mutex);
  const auto over = [this] { return stopping || ended || error; };
  if (workers > 0) {
    room.wait(lock, [&] { return over() || in_flight + unconsumed < window; });
  }
  if (over()) return false;
  ++in_flight;
  return true;
}

/// @return false if another thread has taken the end of the epoch
bool LaneLoader::State::fetch(Item& item) {
  const std::lock_guard lock(source_mutex);
  if (source_done) return false;
  try {
    item.last = !dataset.next(item.candidate);
  } catch (...) {
    item.error = std::current_exception();
  }
  source_done = item.last || item.error != nullptr;
  item.number = next_number++;
  return true;
}

void LaneLoader::State::prepare(Item& item) const {
  const Candidate& candidate = item.candidate;
  try {
    SampleRandom random(options.seed, epoch, candidate.shard, candidate.key, candidate.ordinal);
    item.picture = preprocess.apply(candidate.picture, candidate.where(), std::ref(random));
  } catch (const DataError& damage) {
    item.fault = damage.what();
  } catch (...) {
    item.error = std::current_exception();
  }
  item.candidate.picture = std::string();
}

/// Gives places to this item and to those that waited for it, and writes them.
void LaneLoader::State::give_place(Item&& item) {
  std::vector<Placement> placements;
  {
    const std::lock_guard lock(mutex);
    decoded.emplace(item.number, std::move(item));
    for (auto next = decoded.begin(); next != decoded.end() && next->first == next_to_assign;
         next = decoded.begin()) {
      ++next_to_assign;
      --in_flight;
      if (!error && !ended) assign(std::move(next->second), placements);
      decoded.erase(next);
    }
  }
  std::exception_ptr failure;
  try {
    for (const Placement& to : placements) {
      to.batch->write(to.place, to.item.picture, to.item.candidate);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    for (const Placement& placement : placements) ++placement.batch->written;
    if (failure) {
      error = failure;
      batches.clear();
    }
    // Nobody is woken for less: a batch is 64 samples, and a waking thread costs as much as one.
    if (front_is_ready() || is_settled()) ready.notify_one();
    if (ended || error || in_flight + unconsumed < window) room.notify_all();
  }
}

/// Resampling has no end, so it is given up where ten rounds of the shards and two windows of mixed
/// samples had nothing but broken pictures.
bool LaneLoader::State::is_hopeless(const Item& item) {
  if (!options.resample || placed > 0 || item.fault.empty()) return false;
  const int64_t rounds = 10 * static_cast<int64_t>(options.urls.size()) + 10;
  return ++broken > 2 * options.shuffle_buffer &&
         item.candidate.ordinal > first.window_start.shard + rounds;
}

/// Called in the order of the numbers, under the mutex.
void LaneLoader::State::assign(Item&& item, std::vector<Placement>& placements) {
  if (item.error) {
    error = item.error;
    return;
  }
  Candidate& candidate = item.candidate;
  carry.merge(std::move(candidate.dropped_before));
  const bool has_open = !batches.empty() && !batches.back()->closed;
  if (item.last || is_hopeless(item)) {
    if (has_open) batches.back()->close(candidate.behind, std::exchange(carry, DropLog{}));
    ended = true;
    return;
  }
  if (!item.fault.empty()) {
    carry.add(drop::kBrokenPicture, item.fault);
    return;
  }
  try {
    if (!has_open) {
      batches.push_back(std::make_shared<OpenBatch>(options, item.picture, candidate));
    }
    const std::shared_ptr<OpenBatch> open = batches.back();
    const int64_t place = open->add(item.picture, candidate, options.split);
    ++placed;
    ++unconsumed;
    if (open->added == options.batch_size) {
      open->close(candidate.behind, std::exchange(carry, DropLog{}));
    }
    placements.push_back({open, place, std::move(item)});
  } catch (...) {
    error = std::current_exception();
  }
}

/// No batch will become ready any more.
bool LaneLoader::State::is_settled() const {
  return (ended || error) && (batches.empty() || !batches.front()->closed);
}

std::optional<Batch> LaneLoader::State::next() {
  D2_CHECK(started, "start_epoch() comes before next()");
  std::unique_lock lock(mutex);
  while (!front_is_ready() && !is_settled()) {
    if (workers > 0) {
      ready.wait(lock);
    } else {
      lock.unlock();
      work_once();
      lock.lock();
    }
  }
  if (!front_is_ready()) return finish();
  const std::shared_ptr<OpenBatch> done = std::move(batches.front());
  batches.pop_front();
  unconsumed -= done->added;
  lock.unlock();
  room.notify_all();

  report(done->drops);
  return done->take();
}

/// The end of the epoch, under the mutex.
std::optional<Batch> LaneLoader::State::finish() {
  if (error) std::rethrow_exception(error);
  report(std::exchange(carry, DropLog{}));
  return std::nullopt;
}

void LaneLoader::State::report(const DropLog& drops) {
  DropCounts found;
  drops.report(options.split, *told, found);
  for (const auto& [reason, count] : found) {
    dropped[reason] += count;
    epoch_dropped[reason] += count;
  }
}

LaneLoader::LaneLoader(const ShardDataConfig& config, LoaderOptions options)
    : state_(std::make_unique<State>(config, std::move(options))) {}

LaneLoader::~LaneLoader() = default;

void LaneLoader::start_epoch(int64_t epoch, const LanePosition& position) {
  state_->start(epoch, position);
}

std::optional<Batch> LaneLoader::next() {
  return state_->next();
}

int64_t LaneLoader::placed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->placed;
}

const DropCounts& LaneLoader::dropped() const {
  return state_->dropped;
}

const DropCounts& LaneLoader::dropped_in_epoch() const {
  return state_->epoch_dropped;
}

}  // namespace dalle2
