// SPDX-License-Identifier: MIT
#include "data/decoder_dataset.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

/// Transfers in a row that fail through all their attempts before the network counts as lost.
constexpr int64_t kMostUnreachable = 3;

std::string base_name(const std::string& address) {
  if (address.starts_with("pipe:")) return address;
  const std::string url = public_url(address);
  const size_t slash = url.rfind('/');
  return slash == std::string::npos ? url : url.substr(slash + 1);
}

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

/// The field of that name, null without.
std::string* find_field(GroupedSample& sample, const std::string& name) {
  const auto found = sample.fields.find(name);
  return found == sample.fields.end() ? nullptr : &found->second;
}

}  // namespace

std::string Candidate::where() const {
  return fmt::format("shard {}, sample {}", shard, key);
}

DecoderDataset::Embeddings::Embeddings(std::string kind_,
                                       std::string field_,
                                       std::string none_,
                                       std::string zero_)
    : kind(std::move(kind_)),
      field(std::move(field_)),
      none(std::move(none_)),
      zero(std::move(zero_)) {}

/// Proves at the start what would else show as an empty epoch: that there are files, that they are
/// for these shards, and that they have the model's width.
void DecoderDataset::Embeddings::open(const std::optional<std::string>& url,
                                      bool in_tar,
                                      const LoaderOptions& options) {
  if (!needed) return;
  const std::string key = kind == "image" ? "img_embeddings_url" : "text_embeddings_url";
  if (!url || url->empty()) {
    if (in_tar) return;
    throw ConfigError(
        "/data/{}: No {} embeddings source specified.\n"
        "  Give the folder of the .npy files, or set /data/embeddings_in_tar for shards that hold "
        "<key>.{}.",
        key,
        kind,
        field);
  }
  folder.emplace(*url, kind, options.shard_width);
  row_shape = folder->row_shape();
  if (width && !row_shape.empty() && row_shape.back() != *width) {
    throw DataError(
        "{}: {} embeddings are {} wide, the model takes {}.\n"
        "  Give embeddings of the encoder that the model is made for, or change the model's width.",
        public_url(folder->first_file()),
        kind,
        row_shape.back(),
        *width);
  }
  bool covered = false;
  for (size_t i = 0; i < options.urls.size() && !covered; ++i) {
    covered = folder->has(options.urls.number(i));
  }
  if (!covered) {
    throw DataError(
        "/data/{}: none of the {} {} shards has an embedding file: {}, first shard {}.\n  The "
        "digits after the last '_' of a file must be the number of its shard.",
        key,
        with_commas(static_cast<int64_t>(options.urls.size())),
        options.split,
        folder->describe(),
        public_url(options.urls.front()));
  }
}

/// The first embedding seen sets the shape; a batch cannot hold another.
bool DecoderDataset::Embeddings::check_shape(const std::vector<int64_t>& shape,
                                             const std::string& where,
                                             DropLog& drops) {
  if (row_shape.empty() && (!width || shape.back() == *width)) row_shape = shape;
  if (shape == row_shape) return true;
  const std::string expected =
      row_shape.empty() ? fmt::format("width {}", *width) : shape_text(row_shape);
  drops.add(
      drop::kWrongEmbeddingShape,
      fmt::format(
          "{}: {} embedding of shape {}, expected {}", where, kind, shape_text(shape), expected));
  return false;
}

bool DecoderDataset::Embeddings::take(GroupedSample& sample,
                                      int64_t index_width,
                                      const std::string& where,
                                      EmbeddingRow& row,
                                      DropLog& drops) {
  if (!needed) return true;
  if (folder) {
    const auto index = row_of_key(sample.key, index_width);
    if (!index || *index >= rows->rows()) {
      drops.add(none,
                index ? fmt::format("{}: row {} of {} rows", where, *index, rows->rows())
                      : fmt::format("{}: the key does not end in {} digits", where, index_width));
      return false;
    }
    row = {rows, *index};
  } else {
    const std::string* content = find_field(sample, field);
    // A plain .npy field is the image embedding.
    if (content == nullptr && kind == "image") content = find_field(sample, "npy");
    if (content == nullptr) {
      drops.add(none, fmt::format("{}: no field {}", where, field));
      return false;
    }
    try {
      row = parse_embedding(*content, kind == "image" ? 1 : 2, fmt::format("{}.{}", where, field));
    } catch (const DataError& error) {
      drops.add(none, error.what());
      return false;
    }
    if (!check_shape(row.rows->row_shape(), where, drops)) return false;
  }
  if (row.rows->is_zero(row.row)) {
    drops.add(zero, fmt::format("{}: row {} is all zero", where, row.row));
    return false;
  }
  return true;
}

DecoderDataset::DecoderDataset(const DecoderDataConfig& config, const LoaderOptions& options)
    : options_(options),
      index_width_(config.index_width),
      max_bad_fraction_(config.max_bad_fraction) {
  if (options_.urls.empty()) {
    throw DataError("the split \"{}\" has no shards.\n  Make more shards, or change /data/splits.",
                    options_.split);
  }
  if (options_.shuffle && options_.resample) {
    throw ConfigError(
        "/data/resample_train: Cannot both resample and shuffle: resampling is random already.\n"
        "  Set /data/shuffle_train to false.");
  }
  image_.needed = options_.need_image_embeds;
  image_.width = options_.image_embed_dim;
  text_.needed = options_.need_text_encodings;
  text_.width = options_.text_embed_dim;
  image_.open(config.img_embeddings_url, config.embeddings_in_tar, options_);
  text_.open(config.text_embeddings_url, config.embeddings_in_tar, options_);
}

void DecoderDataset::start_epoch(int64_t epoch) {
  reader_.reset();
  shards_opened_ = 0;
  bad_shards_ = 0;
  unreachable_in_a_row_ = 0;
  cancelled_ = false;
  opened_since_candidate_ = 0;
  // Ranks read shards of their own, so their orders are drawn apart, too.
  draws_of_shards_.emplace(
      options_.seed, epoch, "order of shards", options_.split, options_.rank.rank);
  order_.resize(options_.urls.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (!options_.shuffle) return;
  for (size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[(*draws_of_shards_)() % i]);
  }
}

bool DecoderDataset::open_embeddings(Embeddings& embeddings,
                                     const std::string& url,
                                     DropLog& drops) {
  embeddings.rows.reset();
  if (!embeddings.folder) return true;
  const int64_t shard = shard_number(url);
  if (!embeddings.folder->has(shard)) {
    drops.add(
        drop::kShardWithoutEmbeddings,
        fmt::format(
            "{}: no file for it in {}", public_url(url), public_url(embeddings.folder->folder())));
    return false;
  }
  try {
    embeddings.rows = embeddings.folder->load(shard, http_options());
  } catch (const DataError& error) {
    drops.add(drop::kShardWithoutEmbeddings, fmt::format("{}: {}", public_url(url), error.what()));
    return false;
  }
  return embeddings.check_shape(
      embeddings.rows->row_shape(), public_url(embeddings.folder->url(shard)), drops);
}

/// @return false at the end of the epoch
bool DecoderDataset::open_next_shard(DropLog& drops) {
  const int64_t shards = static_cast<int64_t>(options_.urls.size());
  while (true) {
    size_t index = 0;
    if (options_.resample) {
      // Ten times round without one sample: there is none.
      if (opened_since_candidate_ >= 10 * shards + 10) return false;
      index = (*draws_of_shards_)() % options_.urls.size();
    } else {
      if (shards_opened_ == shards) return false;
      index = order_[static_cast<size_t>(shards_opened_)];
    }
    ++shards_opened_;
    ++opened_since_candidate_;
    const std::string url = options_.urls[index];
    shard_name_ = base_name(url);
    try {
      if (!open_embeddings(image_, url, drops) || !open_embeddings(text_, url, drops)) continue;
      const auto warn = [this](const std::string& text) {
        member_warnings_.add(drop::kRepeatedMember, fmt::format("{}: {}", shard_name_, text));
      };
      reader_ = open_shard(url, warn, http_options());
      return true;
    } catch (const NetworkError& error) {
      lose_unreachable(error, drops);
    } catch (const DataError& error) {
      std::error_code ignored;
      const bool absent = is_local_url(url) && !std::filesystem::exists(local_path(url), ignored);
      lose_shard(absent ? drop::kAbsentShard : drop::kDamagedShard, error.what(), drops);
    }
  }
}

/// After a transfer that failed through all its attempts, the next ones are given up sooner.
HttpOptions DecoderDataset::http_options() const {
  HttpOptions http;
  if (unreachable_in_a_row_ > 0) http.attempts = 2;
  http.cancelled = [this] { return cancelled_.load(); };
  return http;
}

void DecoderDataset::lose_shard(const char* reason, const std::string& text, DropLog& drops) {
  drops.add(reason, text);
  ++bad_shards_;
  const int64_t shards =
      std::max(static_cast<int64_t>(options_.urls.size()), options_.resample ? shards_opened_ : 0);
  if (static_cast<double>(bad_shards_) > max_bad_fraction_ * static_cast<double>(shards)) {
    throw DataError(
        "{}: {} of {} shards cannot be read, more than /data/max_bad_fraction {:g} allows; the "
        "last: {}\n"
        "  Mend or replace the shards, or allow more.",
        options_.split,
        with_commas(bad_shards_),
        with_commas(shards),
        max_bad_fraction_,
        text);
  }
}

/// Called while `error` is handled.
void DecoderDataset::lose_unreachable(const NetworkError& error, DropLog& drops) {
  if (cancelled_) throw;
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  if (refused != nullptr) {
    unreachable_in_a_row_ = 0;  // somebody answers
    const bool absent = refused->status() == 404 || refused->status() == 410;
    return lose_shard(absent ? drop::kAbsentShard : drop::kUnreachableShard, error.what(), drops);
  }
  ++unreachable_in_a_row_;
  const bool all = unreachable_in_a_row_ == static_cast<int64_t>(options_.urls.size());
  if (unreachable_in_a_row_ >= kMostUnreachable || (all && !options_.may_be_empty)) throw;
  lose_shard(drop::kUnreachableShard, error.what(), drops);
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
  candidate.shard = shard_name_;
  candidate.key = sample.key;
  candidate.ordinal = options_.resample ? shards_opened_ : 0;
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

bool DecoderDataset::next(Candidate& candidate) {
  D2_CHECK(draws_of_shards_.has_value(), "start_epoch() comes before next()");
  candidate = Candidate{};
  DropLog drops;
  bool found = false;
  while (!found && (reader_ || open_next_shard(drops))) {
    std::optional<GroupedSample> sample;
    try {
      sample = reader_->next();
      drops.merge(std::exchange(member_warnings_, DropLog{}));
      if (!sample) {
        reader_.reset();
        continue;
      }
    } catch (const NetworkError& error) {
      reader_.reset();
      lose_unreachable(error, drops);
      continue;
    } catch (const DataError& error) {
      reader_.reset();
      lose_shard(drop::kDamagedShard, error.what(), drops);
      continue;
    }
    found = take(*sample, candidate, drops);
  }
  if (found) opened_since_candidate_ = unreachable_in_a_row_ = 0;
  candidate.dropped_before = std::move(drops);
  return found;
}

}  // namespace dalle2
