// SPDX-License-Identifier: MIT
#include "data/loader/shard_dataset.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"

namespace dalle2 {

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
    drops.add(
        drop::kNoCaption,
        fmt::format("{}: {}",
                    where,
                    is_beside ? missing_caption(walk_.url(), sample.key, captions_.caption_encoding)
                              : caption.fault));
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

/// The next usable sample as the shards hold them.
bool ShardDataset::read(Candidate& candidate, DropLog& drops) {
  while (found_ < options_.most_samples) {
    std::optional<GroupedSample> sample = walk_.next(drops);
    if (!sample) return false;
    candidate = Candidate{};
    if (!take(*sample, candidate, drops)) continue;
    candidate.place = walk_.sample_place();
    walk_.found_usable();
    ++found_;
    if (!is_of_share(candidate.place)) continue;
    if (buffer_ > 1) candidate.draw = draw_of(candidate.place);
    return true;
  }
  return false;
}

/// By the place alone: what cannot be read on one rank moves no other sample to another share. Even
/// within each shard, and what is left over goes to another share in the next.
bool ShardDataset::is_of_share(const ShardPlace& place) const {
  return (place.shard + place.sample) % options_.share.world == options_.share.rank;
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

/// One more sample of the coming window. @return false at the end of the shards
bool ShardDataset::read_ahead() {
  begin_window();
  Candidate candidate;
  if (!read(candidate, coming_.drops)) return false;
  coming_.samples.push_back(std::move(candidate));
  return true;
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
  if (static_cast<int64_t>(coming_.samples.size()) == begun.window_samples) {
    coming_.drops = DropLog{};
  }
  current_ = std::exchange(coming_, Window{});
  coming_.start = begun.window_end;
  coming_.bad_shards = walk_.bad_shards();
  if (behind) coming_.samples.push_back(*std::move(behind));
}

/// The coming window becomes the current one, in the order of its draws. @return false if it is
/// empty: the end of the epoch
bool ShardDataset::turn_window() {
  const std::optional<LanePosition> begun = std::exchange(begun_, std::nullopt);
  if (begun) {
    read_begun_window(*begun);
  } else {
    while (coming_.samples.size() < buffer_ && read_ahead()) {
    }
    if (coming_.samples.empty()) return false;
    current_ = std::exchange(coming_, Window{});
    current_.end = walk_.place();
  }
  std::sort(
      current_.samples.begin(), current_.samples.end(), [](const Candidate& a, const Candidate& b) {
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
  position.shards = static_cast<int64_t>(options_.urls.size());
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
  D2_CHECK(epoch_ >= 0, "start_epoch() comes before next()");
  while (passed_ == current_.samples.size()) {
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
