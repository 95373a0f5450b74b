// SPDX-License-Identifier: MIT
#include "data/shards/shard_walk.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "data/shards/picture_shards.h"

namespace dalle2 {
namespace {

/// Between two notes that a search for a usable sample continues.
constexpr double kSecondsOfSilence = 10;

std::string base_name(const std::string& address) {
  const std::string url = public_url(address);
  if (address.starts_with("pipe:")) return url;
  const size_t slash = url.rfind('/');
  return slash == std::string::npos ? url : url.substr(slash + 1);
}

/// Of a file of this machine; 0: not known.
uint64_t bytes_of(const std::string& url) {
  if (!is_local_url(url)) return 0;
  std::error_code unknown;
  const auto bytes = std::filesystem::file_size(local_path(url), unknown);
  return unknown ? 0 : bytes;
}

}  // namespace

ShardWalk::ShardWalk(const LoaderOptions& options, const ShardDataConfig& config, Admit admit)
    : options_(options),
      max_bad_fraction_(config.max_bad_fraction),
      allow_pipe_(config.allow_pipe),
      caption_encoding_(config.caption_encoding),
      admit_(std::move(admit)) {}

void ShardWalk::start_epoch(int64_t epoch, const ShardPlace& place, int64_t bad_shards) {
  reader_.reset();
  first_ = place;
  bad_shards_ = bad_shards;
  unreachable_in_a_row_ = opened_since_usable_ = samples_of_shard_ = 0;
  since_told_.restart();
  shards_opened_ = 0;
  cancelled_ = false;
  member_warnings_ = DropLog{};
  // Lanes read shards of their own, so their orders are drawn apart too.
  draws_.emplace(options_.seed, epoch, "order of shards", options_.split, options_.lane.rank);
  order_.clear();
  if (options_.shuffle) {
    order_.resize(options_.urls.size());
    std::iota(order_.begin(), order_.end(), uint32_t{0});
    for (size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[(*draws_)() % i]);
    }
  }
  for (; shards_opened_ < place.shard; ++shards_opened_) {
    if (options_.resample) (*draws_)();
  }
}

/// The url of the next shard in the order of the epoch.
size_t ShardWalk::draw_shard() {
  if (options_.resample) return (*draws_)() % options_.urls.size();
  const size_t next = static_cast<size_t>(shards_opened_);
  return order_.empty() ? next : order_[next];
}

/// @return false at the end of the epoch
bool ShardWalk::open_next_shard(DropLog& drops) {
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  while (true) {
    if (stop_requested() != 0) throw StoppedError("{}: stopped by a signal", options_.split);
    // Ten times round without one sample: there is none.
    const bool hopeless = opened_since_usable_ >= 10 * shards + 10;
    if (options_.resample ? hopeless : shards_opened_ >= shards) return false;
    if (shards_opened_ >= options_.most_shards) return false;
    url_ = options_.urls[draw_shard()];
    const ShardPlace place =
        shards_opened_ == first_.shard ? first_ : ShardPlace{.shard = shards_opened_};
    ++shards_opened_;
    ++opened_since_usable_;
    samples_of_shard_ = 0;
    shard_name_ = base_name(url_);
    shown_name_ = is_picture_shard(url_) ? shown_shard(url_) : shard_name_;
    tell_of_search();
    std::string refusal;
    try {
      refusal = admit_(url_, source_options(), drops);
      if (refusal.empty()) {
        open_at(place);
        return true;
      }
    } catch (const NetworkError& error) {
      lose_unreachable(error, drops);
    } catch (const DataError& error) {
      std::error_code ignored;
      const bool absent = is_local_url(url_) && !std::filesystem::exists(local_path(url_), ignored);
      lose_shard(absent ? drop::kAbsentShard : drop::kDamagedShard, error.what(), drops);
    }
    if (!refusal.empty()) count_bad_shard(refusal);
  }
}

/// Opens a shard where the sample at `place` begins: there at once if the byte is known, else by
/// reading over those before it.
void ShardWalk::open(const ShardPlace& place) {
  const auto warn = [this](const std::string& text) {
    member_warnings_.add(drop::kRepeatedMember, fmt::format("{}: {}", shown_name_, text));
  };
  SourceOptions source = source_options();
  bytes_of_shard_ = bytes_of(url_);
  if (place.bytes > 0 && bytes_of_shard_ > 0 && bytes_of_shard_ != place.bytes) {
    log_warning(
        "data",
        "{}: {} has {} bytes, and had {} when the epoch was interrupted: the shard has been "
        "written anew\n  The epoch resumes after the first {} of it. In this epoch, samples may come "
        "twice or not at all.",
        options_.split,
        shown_name_,
        with_commas(static_cast<int64_t>(bytes_of_shard_)),
        with_commas(static_cast<int64_t>(place.bytes)),
        counted(place.sample, "sample"));
    return open({place.shard, place.sample});
  }
  source.offset = place.offset;
  sought_.reset();
  if (place.offset > 0) sought_ = place;
  reader_ = open_shard(url_, warn, source, caption_encoding_);
  end_noted_ = false;
  samples_of_shard_ = place.offset > 0 ? place.sample : 0;
  while (samples_of_shard_ < place.sample && reader_->next()) ++samples_of_shard_;
  if (samples_of_shard_ < place.sample) {
    log_warning(
        "data",
        "{}: {} has {}, and the epoch resumes after its sample {}: it was a different shard then",
        options_.split,
        shown_name_,
        counted(samples_of_shard_, "sample"),
        place.sample);
  }
  member_warnings_ = DropLog{};  // of what was skipped: told before
}

/// The shard may have been packed since it was read: then the byte means nothing, which shows at
/// once or with the first sample, and the samples are counted.
void ShardWalk::open_at(const ShardPlace& place) {
  try {
    open(place);
  } catch (const DataError&) {
    if (!open_from_start()) throw;
  }
}

/// @return false if the shard was not opened at a byte, or gave a sample there
bool ShardWalk::open_from_start() {
  if (!sought_) return false;
  open({sought_->shard, sought_->sample});
  return true;
}

void ShardWalk::found_usable() {
  opened_since_usable_ = unreachable_in_a_row_ = 0;
  since_told_.restart();
}

/// Drops are reported with the batch after them. While no batch comes, this reports the search.
void ShardWalk::tell_of_search() {
  if (since_told_.seconds() < kSecondsOfSilence) return;
  since_told_.restart();
  log_warning("data",
              "{}: no usable sample in {} in a row so far{}{}",
              options_.split,
              counted(opened_since_usable_, "shard"),
              last_loss_.empty() ? "" : "; the last: ",
              last_loss_);
}

/// After a transfer that failed through all its attempts, the next ones are given up sooner.
SourceOptions ShardWalk::source_options() const {
  SourceOptions source{.allow_pipe = allow_pipe_};
  if (unreachable_in_a_row_ > 0) source.http.attempts = 2;
  source.http.cancelled = [this] { return cancelled_.load(); };
  return source;
}

void ShardWalk::lose_shard(const char* reason, const std::string& text, DropLog& drops) {
  drops.add(reason, text);
  count_bad_shard(text);
}

void ShardWalk::count_bad_shard(const std::string& text) {
  ++bad_shards_;
  last_loss_ = text;
  const int64_t shards =
      std::max(static_cast<int64_t>(options_.urls.size()), options_.resample ? shards_opened_ : 0);
  if (static_cast<double>(bad_shards_) > max_bad_fraction_ * static_cast<double>(shards)) {
    throw DataError(
        "{}: {} of {} cannot be read, more than /data/max_bad_fraction {:g} allows; the last: {}\n"
        "  Mend or replace the shards, or allow more.",
        options_.split,
        with_commas(bad_shards_),
        counted(shards, "shard"),
        max_bad_fraction_,
        text);
  }
}

/// Called while `error` is handled.
void ShardWalk::lose_unreachable(const NetworkError& error, DropLog& drops) {
  if (cancelled_) throw;
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  if (refused != nullptr) {
    unreachable_in_a_row_ = 0;  // somebody answers
    return lose_shard(
        refused->says_absent() ? drop::kAbsentShard : drop::kUnreachableShard, error.what(), drops);
  }
  ++unreachable_in_a_row_;
  const bool all = unreachable_in_a_row_ == static_cast<int64_t>(options_.urls.size());
  if (unreachable_in_a_row_ >= kMostUnreachable || (all && !options_.may_be_empty)) throw;
  lose_shard(drop::kUnreachableShard, error.what(), drops);
}

/// What shows at the end of a shard; with its last sample, so that a position behind that is behind
/// this too.
void ShardWalk::note_end(bool has_sample, DropLog& drops) {
  if (end_noted_ || !reader_->at_end()) return;
  end_noted_ = true;
  if (!reader_->has_end_marker()) {
    drops.add(drop::kShardWithoutEnd,
              fmt::format("{} ends without its end marker: it may have been cut", shown_name_));
  }
  if (const std::string unread = reader_->unread(); !unread.empty())
    drops.add(drop::kUnreadData, fmt::format("{}: {}", shown_name_, unread));
  if (!has_sample && samples_of_shard_ == 0) {
    drops.add(drop::kEmptyShard, fmt::format("{}: no member of it makes a sample", shown_name_));
  }
}

std::optional<GroupedSample> ShardWalk::next_of_shard() {
  try {
    return reader_->next();
  } catch (const DataError&) {
    if (!open_from_start()) throw;
    return reader_->next();
  }
}

std::optional<GroupedSample> ShardWalk::next(DropLog& drops) {
  while (reader_ || open_next_shard(drops)) {
    try {
      std::optional<GroupedSample> sample = next_of_shard();
      drops.merge(std::exchange(member_warnings_, DropLog{}));
      note_end(sample.has_value(), drops);
      if (sample) {
        sought_.reset();
        ++samples_of_shard_;
        return sample;
      }
      reader_.reset();
    } catch (const NetworkError& error) {
      reader_.reset();
      lose_unreachable(error, drops);
    } catch (const DataError& error) {
      reader_.reset();
      lose_shard(drop::kDamagedShard, error.what(), drops);
    }
  }
  return std::nullopt;
}

ShardPlace ShardWalk::place() const {
  if (shards_opened_ == first_.shard) return first_;  // nothing was read yet
  if (!reader_ || reader_->at_end()) return {.shard = shards_opened_};
  return {
      shards_opened_ - 1, samples_of_shard_, reader_->next_offset().value_or(0), bytes_of_shard_};
}

}  // namespace dalle2
