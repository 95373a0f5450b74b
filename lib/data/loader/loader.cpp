// SPDX-License-Identifier: MIT
#include "data/loader/loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "data/loader/shard_dataset.h"
#include "data/pictures/preprocess.h"
#include "data/shards/picture_shards.h"

namespace dalle2 {

/// A line is written in one piece, so several loaders of a rank may share the file.
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

namespace {

at::Tensor empty_like_rows(const LoaderOptions& options, const EmbeddingRow& row) {
  if (!row.rows) return {};
  std::vector<int64_t> shape = row.rows->row_shape();
  shape.insert(shape.begin(), options.batch_size);
  return empty_for_batch(at::kFloat, shape, options.gpu);
}

void write_embedding(const EmbeddingRow& row, int64_t place, const at::Tensor& out) {
  if (row.rows) row.rows->copy_row(row.row, out.data_ptr<float>() + place * row.rows->row_numel());
}

}  // namespace

/// Passes over the shards of a lane. The threads (data.num_workers; 0: the caller's) decode at most
/// two batches each ahead; what is delivered, and in which order, does not depend on them.
///
/// How the threads keep the order: the dataset hands out candidates under a lock, each with its
/// number; threads decode them in any order; a decoded one waits until all before it are there, and
/// only then gets its place in a batch. Places, batches, drops and errors therefore follow the
/// numbers alone.
class LaneLoader {
 public:
  /// @param dropped, dropped_in_epoch get what is left out, as far as batches were handed out
  LaneLoader(const ShardDataConfig& config,
             LoaderOptions options,
             DropCounts& dropped,
             DropCounts& dropped_in_epoch)
      : options_(std::move(options)),
        dropped_(dropped),
        epoch_dropped_(dropped_in_epoch),
        workers_(config.num_workers),
        preprocess_(config.preprocessing,
                    decode_options(config, options_.channels),
                    config.max_transform_pixels),
        told_(options_.told ? options_.told : std::make_shared<DropCounts>()),
        // Two batches a thread, as the reference's prefetch_factor.
        window_(2 * std::max<int64_t>(workers_, 1) * options_.batch_size),
        dataset_(config, options_) {}

  ~LaneLoader() { stop(); }

  /// Begins an epoch: its number addresses the shuffling and the augmentation. @param position
  /// where another run stopped in it: what lies before is not decoded
  void start_epoch(int64_t epoch, const LanePosition& position) {
    stop();
    stopping_ = false;
    epoch_ = epoch;
    first_ = position;
    dataset_.start_epoch(epoch, position);
    next_number_ = 0;
    source_done_ = false;
    decoded_.clear();
    next_to_assign_ = in_flight_ = placed_ = broken_ = unconsumed_ = 0;
    carry_ = DropLog{};
    batches_.clear();
    ended_ = false;
    error_ = nullptr;
    for (int64_t i = 0; i < workers_; ++i) {
      try {
        threads_.emplace_back(&LaneLoader::work, this, INT64_MAX);
      } catch (const std::system_error& fault) {
        if (threads_.empty()) {
          throw ResourceError("a thread that reads the data cannot be started: {}", fault.what());
        }
        break;  // fewer will do
      }
    }
  }

  /// The next batch in order, or none at the end. The last short batch is kept. Its position has
  /// this lane alone.
  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    while (!front_is_ready() && !no_more_batches()) {
      if (workers_ > 0) {
        ready_.wait(lock);
      } else {
        lock.unlock();
        work(/*most=*/1);
        lock.lock();
      }
    }
    if (!front_is_ready()) {  // the end of the epoch
      if (error_) std::rethrow_exception(error_);
      report(std::exchange(carry_, DropLog{}));
      return std::nullopt;
    }
    const std::shared_ptr<OpenBatch> done = std::move(batches_.front());
    batches_.pop_front();
    unconsumed_ -= done->added;
    lock.unlock();
    room_.notify_all();

    report(done->drops);
    return done->take();
  }

  /// Samples of the epoch that got into a batch since start_epoch().
  int64_t placed() const {
    const std::lock_guard lock(mutex_);
    return placed_;
  }

 private:
  /// A batch being filled. Places are given in order, under the loader's lock; the samples are
  /// written to their places by several threads at once.
  struct OpenBatch {
    /// Room for `options.batch_size` samples like the first.
    OpenBatch(const LoaderOptions& options, const Image& picture, const Candidate& first)
        : width(picture.width), height(picture.height) {
      batch.images = empty_for_batch(options.byte_pictures ? at::kByte : at::kFloat,
                                     {options.batch_size, options.channels, height, width},
                                     options.gpu);
      batch.image_embeds = empty_like_rows(options, first.image_embed);
      batch.text_encodings = empty_like_rows(options, first.text_encoding);
      batch.latents = empty_like_rows(options, first.latent);
    }

    /// Gives the sample its place. @return the place
    int64_t add(const Image& picture, Candidate& candidate, const std::string& split) {
      if (picture.width != width || picture.height != height) {
        throw DataError(
            "{}: the pictures of a batch differ in size: \"{}\" is {} x {}, \"{}\" is {} x {} pixels.\n"
            "  Let /data/preprocessing end in one size: add \"Resize\": {{\"size\": S}} and "
            "\"CenterCrop\": {{\"size\": S}}, or RandomResizedCrop, before ToTensor.",
            split,
            batch.keys.front(),
            width,
            height,
            candidate.key,
            picture.width,
            picture.height);
      }
      batch.keys.push_back(candidate.key);
      batch.places.push_back(candidate.place);
      batch.captions.push_back(std::move(candidate.caption));
      return added++;
    }

    /// Writes pixels and embeddings straight into the tensors of the batch.
    void write(int64_t place, const Image& picture, const Candidate& candidate) const {
      write_picture(picture, batch.images, place);
      write_embedding(candidate.image_embed, place, batch.image_embeds);
      write_embedding(candidate.text_encoding, place, batch.text_encodings);
      write_embedding(candidate.latent, place, batch.latents);
    }

    /// No more samples. Others may still be written.
    void close(const LanePosition& position, DropLog&& drops_before) {
      batch.position.lanes = {position};
      drops = std::move(drops_before);
      closed = true;
    }

    bool is_ready() const { return closed && written == added; }

    /// The batch, cut to the samples there are. Only once it is ready.
    Batch take() {
      batch.tensors([&](at::Tensor& tensor) {
        if (tensor.defined()) tensor = tensor.narrow(0, 0, added);
      });
      return std::move(batch);
    }

    Batch batch;
    int width = 0, height = 0;       ///< of its pictures, pixels
    int64_t added = 0, written = 0;  ///< samples with a place; those that were written to it
    bool closed = false;
    DropLog drops;  ///< since the batch before, up to its last sample
  };

  /// A candidate on its way from the dataset to its batch.
  struct Item {
    int64_t number = 0;  // since the start, in the order of the epoch
    bool last = false;   // the end of the epoch, no sample
    Candidate candidate;
    Image picture;             // 8-bit, all transforms but ToTensor applied
    std::string fault;         // why the picture cannot be used
    std::exception_ptr error;  // what ends the epoch
  };

  struct Placement {
    std::shared_ptr<OpenBatch> batch;
    int64_t place = 0;
    Item item;
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    dataset_.cancel();
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  /// Brings `most` candidates from the dataset to their batches, or as many as there are.
  void work(int64_t most) {
    for (; most > 0 && reserve(); --most) {
      Item item;
      std::unique_lock source(source_mutex_);
      if (source_done_) {  // another thread has taken the end of the epoch
        source.unlock();
        const std::lock_guard lock(mutex_);
        --in_flight_;
        return;
      }
      try {
        item.last = !dataset_.next(item.candidate);
      } catch (...) {
        item.error = std::current_exception();
      }
      source_done_ = item.last || item.error != nullptr;
      item.number = next_number_++;
      source.unlock();
      if (!item.last && !item.error) prepare(item);
      give_place(std::move(item));
    }
  }

  /// Waits for room in the window of candidates that are ahead of the caller.
  bool reserve() {
    std::unique_lock lock(mutex_);
    const auto over = [this] { return stopping_ || ended_ || error_; };
    if (workers_ > 0) {
      room_.wait(lock, [&] { return over() || in_flight_ + unconsumed_ < window_; });
    }
    if (over()) return false;
    ++in_flight_;
    return true;
  }

  void prepare(Item& item) const {
    const Candidate& candidate = item.candidate;
    try {
      SampleRandom random(options_.seed, epoch_, candidate.shard, candidate.key, candidate.ordinal);
      item.picture = preprocess_.apply(candidate.picture, candidate.where(), std::ref(random));
    } catch (const DataError& damage) {
      item.fault = damage.what();
    } catch (...) {
      item.error = std::current_exception();
    }
    item.candidate.picture = std::string();
  }

  /// Gives places to this item and to those that waited for it, and writes them.
  void give_place(Item&& item) {
    std::vector<Placement> placements;
    {
      const std::lock_guard lock(mutex_);
      decoded_.emplace(item.number, std::move(item));
      for (auto next = decoded_.begin(); next != decoded_.end() && next->first == next_to_assign_;
           next = decoded_.begin()) {
        ++next_to_assign_;
        --in_flight_;
        if (!error_ && !ended_) assign(std::move(next->second), placements);
        decoded_.erase(next);
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
      const std::lock_guard lock(mutex_);
      for (const Placement& placement : placements) ++placement.batch->written;
      if (failure) {
        error_ = failure;
        batches_.clear();
      }
      // Nobody is woken for less: a batch is 64 samples, and a waking thread costs as much as one.
      if (front_is_ready() || no_more_batches()) ready_.notify_one();
      if (ended_ || error_ || in_flight_ + unconsumed_ < window_) room_.notify_all();
    }
  }

  /// Resampling has no end, so it is given up where ten rounds of the shards and two windows of mixed
  /// samples had nothing but broken pictures.
  bool is_hopeless(const Item& item) {
    if (!options_.resample || placed_ > 0 || item.fault.empty()) return false;
    const int64_t rounds = 10 * static_cast<int64_t>(options_.urls.size()) + 10;
    return ++broken_ > 2 * options_.shuffle_buffer &&
           item.candidate.ordinal > first_.window_start.shard + rounds;
  }

  /// Called in the order of the numbers, under the mutex.
  void assign(Item&& item, std::vector<Placement>& placements) {
    if (item.error) {
      error_ = item.error;
      return;
    }
    Candidate& candidate = item.candidate;
    carry_.merge(std::move(candidate.dropped_before));
    const bool has_open = !batches_.empty() && !batches_.back()->closed;
    if (item.last || is_hopeless(item)) {
      if (has_open) batches_.back()->close(candidate.behind, std::exchange(carry_, DropLog{}));
      ended_ = true;
      return;
    }
    if (!item.fault.empty()) {
      carry_.add(drop::kBrokenPicture, item.fault);
      return;
    }
    try {
      if (!has_open) {
        batches_.push_back(std::make_shared<OpenBatch>(options_, item.picture, candidate));
      }
      const std::shared_ptr<OpenBatch> open = batches_.back();
      const int64_t place = open->add(item.picture, candidate, options_.split);
      ++placed_;
      ++unconsumed_;
      if (open->added == options_.batch_size) {
        open->close(candidate.behind, std::exchange(carry_, DropLog{}));
      }
      placements.push_back({open, place, std::move(item)});
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  bool front_is_ready() const { return !batches_.empty() && batches_.front()->is_ready(); }

  bool no_more_batches() const {
    return (ended_ || error_) && (batches_.empty() || !batches_.front()->closed);
  }

  void report(const DropLog& drops) {
    DropCounts found;
    drops.report(options_.split, *told_, found);
    for (const auto& [reason, count] : found) {
      dropped_[reason] += count;
      epoch_dropped_[reason] += count;
    }
  }

  const LoaderOptions options_;
  DropCounts& dropped_;
  DropCounts& epoch_dropped_;
  const int64_t workers_;
  const Preprocess preprocess_;
  const std::shared_ptr<DropCounts> told_;
  const int64_t window_;
  int64_t epoch_ = 0;
  LanePosition first_;  // where the epoch was resumed
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_ = false;

  std::mutex source_mutex_;  // guards the next three
  ShardDataset dataset_;
  int64_t next_number_ = 0;
  bool source_done_ = false;

  mutable std::mutex mutex_;         // guards all below
  std::condition_variable room_;     // in the window, for threads
  std::condition_variable ready_;    // a batch, or the end, for the caller
  std::map<int64_t, Item> decoded_;  // waiting for those before them
  int64_t next_to_assign_ = 0;
  int64_t in_flight_ = 0;   // candidates without a place yet
  int64_t placed_ = 0;      // samples of the epoch that got one
  int64_t broken_ = 0;      // pictures before the first of them
  int64_t unconsumed_ = 0;  // of them, not handed out yet
  DropLog carry_;           // drops since the last closed batch
  std::deque<std::shared_ptr<OpenBatch>> batches_;
  bool ended_ = false;
  std::exception_ptr error_;
};

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
    const int64_t begin = lane * shards / count, end = (lane + 1) * shards / count;
    if (begin == end) continue;
    LoaderOptions part = options_;
    part.urls = options_.urls.part(static_cast<size_t>(begin), static_cast<size_t>(end));
    part.lane = {static_cast<int>(lane), static_cast<int>(count)};
    lanes_[static_cast<size_t>(lane)] =
        std::make_unique<LaneLoader>(config, std::move(part), dropped_, epoch_dropped_);
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
  epoch_dropped_.clear();
  had_empty_step_ = false;
  for (size_t lane = 0; lane < count; ++lane) {
    if (lanes_[lane]) lanes_[lane]->start_epoch(epoch, position_.lanes[lane]);
  }
  started_ = true;
}

/// Asks the other ranks. One that has a fault has told the others first: they would wait for it.
/// @param own samples of this rank's batch @return the samples of all ranks' batches
std::vector<int64_t> ShardLoader::sizes_of_step(int64_t own,
                                                const std::exception_ptr& fault) const {
  bool is_stopped = false;
  try {
    if (fault) std::rethrow_exception(fault);
  } catch (const StoppedError&) {
    if (!options_.share_sizes) throw;
    is_stopped = true;
  } catch (const Error&) {
    if (!options_.share_sizes) throw;
  }
  if (!options_.share_sizes) return {own};
  const std::vector<int64_t> sizes = options_.share_sizes(!fault       ? own
                                                          : is_stopped ? LoaderOptions::kStopAsked
                                                                       : LoaderOptions::kFault);
  if (fault && !is_stopped) std::rethrow_exception(fault);
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
    const auto lane = static_cast<size_t>(first_lane + options_.rank.rank);
    std::optional<Batch> batch;  // none without a lane in this step, and of one that is out
    std::exception_ptr fault;
    try {
      // Lanes that had their turn in this round have it again in the next.
      if (lane < lanes_.size() && static_cast<int64_t>(lane) >= position_.next_lane &&
          lanes_[lane] && !over_[lane]) {
        batch = lanes_[lane]->next();
        over_[lane] = !batch;
        if (batch && batch->size() > 0 && options_.check_batch) options_.check_batch(*batch);
        if (batch) position_.lanes[lane] = batch->position.lanes.front();
      }
    } catch (const Error&) {
      fault = std::current_exception();
    }
    const std::vector<int64_t> sizes = sizes_of_step(batch ? batch->size() : 0, fault);
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
  for (const auto& lane : lanes_) placed += lane ? lane->placed() : 0;
  if (placed > 0 || !from_beginning_ || had_empty_step_ || options_.share.rank > 0) return;
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  const std::string all = counted(shards, "shard"), first = options_.urls[0];
  const std::string message = fmt::format(
      "the split \"{}\" has no usable sample in {} ({} ...): {}.\n  {}",
      options_.split,
      shards > options_.most_shards ? fmt::format("the first {} of {}", options_.most_shards, all)
                                    : all,
      shown_shard(first),
      describe_drops(epoch_dropped_),
      is_picture_shard(first) ? "The warnings name the pictures and what is wrong with them."
      : epoch_dropped_.contains(drop::kWrongEmbeddingShape)
          ? "The warnings say which widths were found and expected."
          : "`dalle2-train shards check` shows what is wrong with the shards and "
            "their embeddings.");
  if (!options_.may_be_empty) throw DataError("{}", message);
  log_warning("data", "{}", message);
}

}  // namespace dalle2
