// SPDX-License-Identifier: MIT
#include "data/loader/shard_dataset.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "data/shards/captions.h"
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
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[(*draws_)() % i]);
  }
  for (; shards_opened_ < place.shard; ++shards_opened_) {
    if (options_.resample) (*draws_)();
  }
}

/// The url of the next shard in the order of the epoch. @return false at the end of the epoch
bool ShardWalk::draw_next_shard() {
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  if (stop_requested() != 0) throw StoppedError("{}: stopped by a signal", options_.split);
  // Ten times round without one sample: there is none.
  const bool hopeless = opened_since_usable_ >= 10 * shards + 10;
  if (options_.resample ? hopeless : shards_opened_ >= shards) return false;
  if (shards_opened_ >= options_.most_shards) return false;
  const auto next = static_cast<size_t>(shards_opened_);
  url_ = options_.urls[options_.resample ? (*draws_)() % options_.urls.size()
                       : order_.empty()  ? next
                                         : order_[next]];
  ++shards_opened_;
  ++opened_since_usable_;
  samples_of_shard_ = 0;
  sought_.reset();
  shard_name_ = base_name(url_);
  shown_name_ = is_picture_shard(url_) ? shown_shard(url_) : shard_name_;
  tell_of_search();
  return true;
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
  if (!has_sample && samples_of_shard_ == 0)
    drops.add(drop::kEmptyShard, fmt::format("{}: no member of it makes a sample", shown_name_));
}

std::optional<GroupedSample> ShardWalk::next(DropLog& drops) {
  std::optional<ShardPlace> again;  // to open the same shard at
  while (reader_ || again || draw_next_shard()) {
    std::string refusal;
    try {
      if (!reader_) {
        const int64_t shard = shards_opened_ - 1;
        const ShardPlace begin = shard == first_.shard ? first_ : ShardPlace{.shard = shard};
        if (!again) refusal = admit_(url_, source_options(), drops);
        if (refusal.empty()) open(std::exchange(again, std::nullopt).value_or(begin));
      }
      if (reader_) {
        std::optional<GroupedSample> sample = reader_->next();
        drops.merge(std::exchange(member_warnings_, DropLog{}));
        note_end(sample.has_value(), drops);
        if (sample) {
          ++samples_of_shard_;
          sought_.reset();
          return sample;
        }
      }
      reader_.reset();
    } catch (const NetworkError& error) {
      reader_.reset();
      lose_unreachable(error, drops);
    } catch (const DataError& error) {
      reader_.reset();
      if (sought_) {
        // It gives nothing at a byte which it had earlier: it has been written anew, and its samples are
        // counted again.
        again = ShardPlace{.shard = sought_->shard, .sample = sought_->sample};
        sought_.reset();
        continue;
      }
      lose_shard(
          is_absent_file(url_) ? drop::kAbsentShard : drop::kDamagedShard, error.what(), drops);
    }
    if (!refusal.empty()) count_bad_shard(refusal);
  }
  return std::nullopt;
}

ShardPlace ShardWalk::place() const {
  if (shards_opened_ == first_.shard) return first_;  // nothing was read yet
  if (!reader_ || reader_->at_end()) return {.shard = shards_opened_};
  return {
      shards_opened_ - 1, samples_of_shard_, reader_->next_offset().value_or(0), bytes_of_shard_};
}

std::string Candidate::where() const {
  return file.empty() ? fmt::format("shard {}, sample {}", shard, key) : file;
}

ShardDataset::ShardDataset(const ShardDataConfig& config, const LoaderOptions& options)
    : options_(options),
      captions_(config),
      index_width_(config.index_width),
      image_(SampleEmbeddings::Kind::kImage, options.need_image_embeds, options.image_embed_dim),
      text_(SampleEmbeddings::Kind::kText, options.need_text_encodings, options.text_embed_dim),
      latent_(SampleEmbeddings::Kind::kLatent, options.need_latents, options.latent_side),
      walk_(options_,
            config,
            [this](const std::string& url, const SourceOptions& source, DropLog& drops) {
              const std::string refusal = image_.open_shard(url, source, drops);
              return refusal.empty() ? text_.open_shard(url, source, drops) : refusal;
            }) {
  check_caption_encoding(config.caption_encoding, "/data/caption_encoding");
  image_.open(config, options_);
  text_.open(config, options_);
}

void ShardDataset::start_epoch(int64_t epoch, LanePosition position) {
  epoch_ = epoch;
  found_ = 0;
  // An epoch is finished with the windows it was begun with.
  buffer_ = static_cast<size_t>(std::max<int64_t>(
      position.shuffle_buffer > 0 ? position.shuffle_buffer : options_.shuffle_buffer, 1));
  current_ = coming_ = Window{};
  passed_ = 0;
  begun_.reset();
  to_pass_ = 0;
  if (position.window_samples > 0) {
    begun_ = position;
  } else {
    to_pass_ = position.passed;
  }
  walk_.start_epoch(epoch, position.window_start, position.bad_shards);
}

bool ShardDataset::take_caption(const GroupedSample& sample, Candidate& candidate, DropLog& drops) {
  CaptionText caption = caption_of(sample, captions_.caption_encoding);
  SampleRandom random(options_.seed,
                      epoch_,
                      "caption line of " + candidate.shard,
                      candidate.key,
                      candidate.ordinal);
  candidate.caption = chosen_lines(
      std::exchange(caption.text, ""), captions_.caption_lines, [&] { return random(); });
  if (!options_.need_captions) return true;
  const std::string where = candidate.where();
  if (candidate.caption.empty()) {
    const bool is_beside = !candidate.file.empty() && sample.find({"txt"}) == nullptr;
    const std::filesystem::path name =
        std::filesystem::path(candidate.file).filename().replace_extension(".txt");
    drops.add(
        drop::kNoCaption,
        fmt::format(
            "{}: {}", where, is_beside ? "no " + name.string() + " beside it" : caption.fault));
    return false;
  }
  note_caption(caption, captions_, where, drops);
  return true;
}

bool ShardDataset::take(GroupedSample& sample, Candidate& candidate, DropLog& drops) {
  candidate.shard = walk_.shard_name();
  candidate.key = sample.key;
  candidate.file = picture_of(walk_.url(), sample.key);
  candidate.ordinal = options_.resample ? walk_.shards_opened() : 0;
  const char* field = sample.picture_field();
  if (field == nullptr) {
    drops.add(drop::kNoPicture, fmt::format("{}: {}", candidate.where(), no_field_text(sample)));
    return false;
  }
  if (const std::string several = sample.several_pictures(); !several.empty())
    drops.add(drop::kSeveralPictures, fmt::format("{} {}", candidate.where(), several));
  if (!take_caption(sample, candidate, drops)) return false;
  const std::string where = candidate.where();
  if (!image_.take(sample, index_width_, where, candidate.image_embed, drops)) return false;
  if (!text_.take(sample, index_width_, where, candidate.text_encoding, drops)) return false;
  if (!latent_.take(sample, index_width_, where, candidate.latent, drops)) return false;
  candidate.picture = std::move(sample.fields.at(field));
  return true;
}

/// 0 or more; the same for the same place of the epoch, whatever else could be read.
int64_t ShardDataset::draw_of(const ShardPlace& place) const {
  SampleRandom bits(options_.seed,
                    epoch_,
                    options_.split,
                    fmt::format("order of lane {}, shard {}", options_.lane.rank, place.shard),
                    place.sample);
  const uint64_t high = bits(), low = bits();
  return static_cast<int64_t>((high << 32 | low) >> 1);
}

void ShardDataset::begin_window() {
  if (coming_.start) return;
  coming_.start = walk_.place();
  coming_.bad_shards = walk_.bad_shards();
}

/// One more usable sample of the coming window, as the shards hold them. @return false at the end of the shards
bool ShardDataset::read_ahead() {
  begin_window();
  while (found_ < options_.most_samples) {
    std::optional<GroupedSample> sample = walk_.next(coming_.drops);
    if (!sample) return false;
    Candidate candidate;
    if (!take(*sample, candidate, coming_.drops)) continue;
    candidate.place = walk_.sample_place();
    walk_.found_usable();
    ++found_;
    // By the place alone: what cannot be read on one rank moves no other sample to another share. Even
    // within each shard, and what is left over goes to another share in the next.
    const int64_t place = candidate.place.shard + candidate.place.sample;
    if (place % options_.share.world != options_.share.rank) continue;
    if (buffer_ > 1) candidate.draw = draw_of(candidate.place);
    coming_.samples.push_back(std::move(candidate));
    return true;
  }
  return false;
}

/// The window that an earlier run began: what lies between its two places, even if some of it
/// cannot be read any more.
void ShardDataset::read_begun_window(const LanePosition& begun) {
  begin_window();
  coming_.end = begun.window_end;
  std::optional<Candidate> behind;
  while (!behind && walk_.place().is_before(begun.window_end) && read_ahead()) {
    if (coming_.samples.back().place.is_before(begun.window_end)) continue;
    behind = std::move(coming_.samples.back());
    coming_.samples.pop_back();
  }
  // What was lost then was reported then.
  if (static_cast<int64_t>(coming_.samples.size()) == begun.window_samples)
    coming_.drops = DropLog{};
  current_ = std::exchange(coming_, Window{});
  coming_.start = begun.window_end;
  coming_.bad_shards = walk_.bad_shards();
  if (behind) coming_.samples.push_back(*std::move(behind));
}

/// The coming window, which has been read, or the one that an earlier run began becomes the current one,
/// in the order of its draws. @return false if it is empty: the end of the epoch
bool ShardDataset::turn_window() {
  const std::optional<LanePosition> begun = std::exchange(begun_, std::nullopt);
  if (begun) {
    read_begun_window(*begun);
  } else {
    if (coming_.samples.empty()) return false;
    current_ = std::exchange(coming_, Window{});
    current_.end = walk_.place();
  }
  std::ranges::sort(current_.samples, [](const Candidate& a, const Candidate& b) {
    return a.draw != b.draw ? a.draw < b.draw : a.place.is_before(b.place);
  });
  passed_ = 0;
  if (begun) {
    while (passed_ < current_.samples.size() && current_.samples[passed_].draw <= begun->last_draw)
      ++passed_;
  } else if (to_pass_ > 0) {
    passed_ = std::min(static_cast<size_t>(to_pass_), current_.samples.size());
    to_pass_ -= static_cast<int64_t>(passed_);
    current_.drops = DropLog{};
  }
  if (passed_ == current_.samples.size()) {  // nothing is left of it to tell its drops with
    current_.drops.merge(std::move(coming_.drops));
    coming_.drops = std::exchange(current_.drops, DropLog{});
  }
  return true;
}

LanePosition ShardDataset::position() const {
  LanePosition position;
  position.shuffle_buffer = static_cast<int64_t>(buffer_);
  if (passed_ < current_.samples.size()) {
    position.window_start = *current_.start;
    position.window_end = current_.end;
    position.window_samples = static_cast<int64_t>(current_.samples.size());
    position.passed = static_cast<int64_t>(passed_);
    position.last_draw = current_.samples[passed_ - 1].draw;
    position.bad_shards = current_.bad_shards;
  } else {
    position.window_start = coming_.start ? *coming_.start : walk_.place();
    position.bad_shards = coming_.start ? coming_.bad_shards : walk_.bad_shards();
  }
  return position;
}

bool ShardDataset::next(Candidate& candidate) {
  while (passed_ == current_.samples.size()) {
    while (!begun_ && coming_.samples.size() < buffer_ && read_ahead()) {
    }
    if (turn_window()) continue;
    candidate = Candidate{};
    candidate.dropped_before = std::exchange(coming_.drops, DropLog{});
    candidate.behind = position();
    return false;
  }
  Candidate& next = current_.samples[passed_++];
  const int64_t draw = next.draw;
  candidate = std::move(next);
  next.draw = draw;  // position() asks for it
  candidate.dropped_before = std::exchange(current_.drops, DropLog{});
  if (buffer_ > 1) read_ahead();
  candidate.behind = position();
  return true;
}

}  // namespace dalle2
