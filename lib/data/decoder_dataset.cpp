// SPDX-License-Identifier: MIT
#include "data/decoder_dataset.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

/// Length of the UTF-8 character at `at`; 0 if there is none (RFC 3629).
size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = byte(at), second = byte(at + 1);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : length;
}

bool is_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace

std::string Candidate::where() const {
  return fmt::format("shard {}, sample {}", shard, key);
}

DecoderDataset::DecoderDataset(const DecoderDataConfig& config, const LoaderOptions& options)
    : options_(options),
      index_width_(config.index_width),
      image_(SampleEmbeddings::Kind::kImage, options.need_image_embeds, options.image_embed_dim),
      text_(SampleEmbeddings::Kind::kText, options.need_text_encodings, options.text_embed_dim),
      walk_(options_,
            config.max_bad_fraction,
            [this](const std::string& url, const HttpOptions& http, DropLog& drops) {
              return image_.open_shard(url, http, drops) && text_.open_shard(url, http, drops);
            }) {
  if (options_.urls.empty()) {
    throw DataError("the split \"{}\" has no shards.\n  Make more shards, or change /data/splits.",
                    options_.split);
  }
  image_.open(config, options_);
  text_.open(config, options_);
}

void DecoderDataset::start_epoch(int64_t epoch, LanePosition position) {
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  if (position.shards > 0 && position.shards != shards) {
    log_warning("data",
                "{}: there are {} shards, and were {} when the run stopped within epoch {}: what "
                "was seen of it cannot be told, and it begins anew",
                options_.split,
                shards,
                position.shards,
                epoch);
    position = {};
  }
  epoch_ = epoch;
  // An epoch is finished with the windows it was begun with.
  buffer_ = static_cast<size_t>(std::max<int64_t>(
      position.shuffle_buffer > 0 ? position.shuffle_buffer : options_.shuffle_buffer, 1));
  current_ = coming_ = Window{};
  order_.clear();
  passed_ = 0;
  window_ = position.window - 1;
  to_pass_ = position.passed;
  walk_.start_epoch(epoch, position.window_start);
}

bool DecoderDataset::take_caption(GroupedSample& sample, Candidate& candidate, DropLog& drops) {
  candidate.caption.clear();
  std::string* text = find_field(sample, "txt");
  if (text != nullptr && is_utf8(*text)) {
    candidate.caption = std::move(*text);
    return true;
  }
  const char* fault = text == nullptr ? "no field txt" : "its field txt is not UTF-8";
  if (options_.need_captions) {
    drops.add(drop::kNoCaption, fmt::format("{}: {}", candidate.where(), fault));
    return false;
  }
  if (!warned_of_caption_) {
    log_warning("data",
                "{}: {} has no caption ({}); it and others like it get an empty one",
                options_.split,
                candidate.where(),
                fault);
    warned_of_caption_ = true;
  }
  return true;
}

bool DecoderDataset::take(GroupedSample& sample, Candidate& candidate, DropLog& drops) {
  candidate.shard = walk_.shard_name();
  candidate.key = sample.key;
  candidate.ordinal = options_.resample ? walk_.shards_opened() : 0;
  std::string* picture = nullptr;
  for (const char* name : {"jpg", "jpeg", "png", "webp"}) {
    if (picture == nullptr) picture = find_field(sample, name);
  }
  if (picture == nullptr) {
    drops.add(drop::kNoPicture,
              fmt::format("{}: no field jpg, jpeg, png or webp", candidate.where()));
    return false;
  }
  if (!take_caption(sample, candidate, drops)) return false;
  const std::string where = candidate.where();
  if (!image_.take(sample, index_width_, where, candidate.image_embed, drops)) return false;
  if (!text_.take(sample, index_width_, where, candidate.text_encoding, drops)) return false;
  candidate.picture = std::move(*picture);
  return true;
}

/// The next usable sample as the shards hold them.
bool DecoderDataset::read(Candidate& candidate, DropLog& drops) {
  while (std::optional<GroupedSample> sample = walk_.next(drops)) {
    candidate = Candidate{};
    if (take(*sample, candidate, drops)) {
      walk_.found_usable();
      return true;
    }
  }
  return false;
}

/// One more sample of the coming window. @return false at the end of the shards
bool DecoderDataset::read_ahead() {
  if (!coming_.start) coming_.start = walk_.place();
  Candidate candidate;
  if (!read(candidate, coming_.drops)) return false;
  coming_.samples.push_back(std::move(candidate));
  return true;
}

/// The coming window becomes the current one, in the order drawn for it. @return false if it is
/// empty: the end of the epoch
bool DecoderDataset::turn_window() {
  while (coming_.samples.size() < buffer_ && read_ahead()) {
  }
  if (coming_.samples.empty()) return false;
  current_ = std::exchange(coming_, Window{});
  ++window_;
  order_.resize(current_.samples.size());
  std::iota(order_.begin(), order_.end(), uint32_t{0});
  if (buffer_ > 1) {
    SampleRandom draws(options_.seed,
                       epoch_,
                       "order of samples",
                       fmt::format("{} {}", options_.split, options_.lane.rank),
                       window_);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[draws() % i]);
  }
  passed_ = std::min(static_cast<size_t>(to_pass_), order_.size());
  to_pass_ -= static_cast<int64_t>(passed_);
  // Told when the window was begun, by the run that this one continues.
  if (passed_ > 0) current_.drops = DropLog{};
  return true;
}

LanePosition DecoderDataset::position() const {
  const bool within = passed_ < order_.size();
  LanePosition position;
  position.window_start = within ? *current_.start : coming_.start ? *coming_.start : walk_.place();
  position.window = within ? window_ : window_ + 1;
  position.passed = within ? static_cast<int64_t>(passed_) : 0;
  position.shuffle_buffer = static_cast<int64_t>(buffer_);
  position.shards = static_cast<int64_t>(options_.urls.size());
  return position;
}

bool DecoderDataset::next(Candidate& candidate) {
  D2_CHECK(epoch_ >= 0, "start_epoch() comes before next()");
  while (passed_ == order_.size()) {
    if (turn_window()) continue;
    candidate = Candidate{};
    candidate.dropped_before = std::exchange(coming_.drops, DropLog{});
    candidate.behind = position();
    return false;
  }
  candidate = std::move(current_.samples[order_[passed_]]);
  ++passed_;
  candidate.dropped_before = std::exchange(current_.drops, DropLog{});
  if (buffer_ > 1) read_ahead();
  candidate.behind = position();
  return true;
}

}  // namespace dalle2
