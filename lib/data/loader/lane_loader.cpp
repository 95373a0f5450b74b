// SPDX-License-Identifier: MIT
// How the threads keep the order: the dataset hands out candidates under a lock, each with its
// number; threads decode them in any order; a decoded one waits until all before it are there, and
// only then gets its place in a batch. Places, batches, drops and errors therefore follow the
// numbers alone.
#include "data/loader/lane_loader.h"

#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/pictures/planes.h"

namespace dalle2 {
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

/// A batch being filled. Places are given in order, under the loader's lock; the samples are
/// written to their places by several threads at once.
struct LaneLoader::OpenBatch {
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
  /// @throws DataError if the picture is not of the size of the batch; `split` is named in it
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

  /// Closed, and every sample written.
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

/// A sample and its place.
struct LaneLoader::Placement {
  std::shared_ptr<OpenBatch> batch;
  int64_t place = 0;
  Item item;
};

LaneLoader::LaneLoader(const ShardDataConfig& config, LoaderOptions options)
    : options_(std::move(options)),
      workers_(config.num_workers),
      preprocess_(config.preprocessing,
                  decode_options(config, options_.channels),
                  config.max_transform_pixels),
      told_(options_.told ? options_.told : std::make_shared<DropCounts>()),
      // Two batches a thread, as the reference's prefetch_factor.
      window_(2 * std::max<int64_t>(workers_, 1) * options_.batch_size),
      dataset_(config, options_) {}

LaneLoader::~LaneLoader() {
  stop();
}

void LaneLoader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  dataset_.cancel();
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void LaneLoader::start_epoch(int64_t epoch, const LanePosition& position) {
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
  epoch_dropped_.clear();
  started_ = true;
  for (int64_t i = 0; i < workers_; ++i) {
    try {
      threads_.emplace_back([this] {
        while (work_once()) {
        }
      });
    } catch (const std::system_error& fault) {
      if (threads_.empty()) {
        throw ResourceError("a thread that reads the data cannot be started: {}", fault.what());
      }
      break;  // fewer will do
    }
  }
}

/// One candidate from the dataset to its batch. @return false if there is no more to do
bool LaneLoader::work_once() {
  if (!reserve()) return false;
  Item item;
  if (!fetch(item)) {
    const std::lock_guard lock(mutex_);
    --in_flight_;
    return false;
  }
  if (!item.last && !item.error) prepare(item);
  give_place(std::move(item));
  return true;
}

/// Waits for room in the window of candidates that are ahead of the caller.
bool LaneLoader::reserve() {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return stopping_ || ended_ || error_; };
  if (workers_ > 0) {
    room_.wait(lock, [&] { return over() || in_flight_ + unconsumed_ < window_; });
  }
  if (over()) return false;
  ++in_flight_;
  return true;
}

/// @return false if another thread has taken the end of the epoch
bool LaneLoader::fetch(Item& item) {
  const std::lock_guard lock(source_mutex_);
  if (source_done_) return false;
  try {
    item.last = !dataset_.next(item.candidate);
  } catch (...) {
    item.error = std::current_exception();
  }
  source_done_ = item.last || item.error != nullptr;
  item.number = next_number_++;
  return true;
}

void LaneLoader::prepare(Item& item) const {
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
void LaneLoader::give_place(Item&& item) {
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
    if (front_is_ready() || is_settled()) ready_.notify_one();
    if (ended_ || error_ || in_flight_ + unconsumed_ < window_) room_.notify_all();
  }
}

/// Resampling has no end, so it is given up where ten rounds of the shards and two windows of mixed
/// samples had nothing but broken pictures.
bool LaneLoader::is_hopeless(const Item& item) {
  if (!options_.resample || placed_ > 0 || item.fault.empty()) return false;
  const int64_t rounds = 10 * static_cast<int64_t>(options_.urls.size()) + 10;
  return ++broken_ > 2 * options_.shuffle_buffer &&
         item.candidate.ordinal > first_.window_start.shard + rounds;
}

/// Called in the order of the numbers, under the mutex.
void LaneLoader::assign(Item&& item, std::vector<Placement>& placements) {
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

bool LaneLoader::front_is_ready() const {
  return !batches_.empty() && batches_.front()->is_ready();
}

/// No batch will become ready any more.
bool LaneLoader::is_settled() const {
  return (ended_ || error_) && (batches_.empty() || !batches_.front()->closed);
}

std::optional<Batch> LaneLoader::next() {
  D2_CHECK(started_, "start_epoch() comes before next()");
  std::unique_lock lock(mutex_);
  while (!front_is_ready() && !is_settled()) {
    if (workers_ > 0) {
      ready_.wait(lock);
    } else {
      lock.unlock();
      work_once();
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

void LaneLoader::report(const DropLog& drops) {
  DropCounts found;
  drops.report(options_.split, *told_, found);
  for (const auto& [reason, count] : found) {
    dropped_[reason] += count;
    epoch_dropped_[reason] += count;
  }
}

int64_t LaneLoader::placed() const {
  const std::lock_guard lock(mutex_);
  return placed_;
}

}  // namespace dalle2
