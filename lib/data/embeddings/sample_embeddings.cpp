// SPDX-License-Identifier: MIT
#include "data/embeddings/sample_embeddings.h"

#include <filesystem>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/picture_shards.h"

namespace dalle2 {

std::string* find_field(GroupedSample& sample, const std::string& name) {
  const auto found = sample.fields.find(name);
  return found == sample.fields.end() ? nullptr : &found->second;
}

namespace {

constexpr SampleEmbeddings::Words kWords[] = {
    {"image",
     "img_embeddings_url",
     "img_emb.npy",
     drop::kNoImageEmbedding,
     drop::kZeroImageEmbedding,
     "image_embed_dim"},
    {"text",
     "text_embeddings_url",
     "text_emb.npy",
     drop::kNoTextEmbedding,
     drop::kZeroTextEmbedding,
     "text_embed_dim"},
    {"latent", "latents_in_tar", "latent.npy", drop::kNoLatent, drop::kZeroLatent, ""}};

}  // namespace

SampleEmbeddings::SampleEmbeddings(Kind kind, bool needed, std::optional<int64_t> width)
    : kind_(kind), needed_(needed), width_(width), words_(kWords[static_cast<size_t>(kind)]) {}

void SampleEmbeddings::open(const ShardDataConfig& config, const LoaderOptions& options) {
  if (!needed_ || kind_ == Kind::kLatent) return;  // those are in the shards
  const std::optional<std::string>& url =
      kind_ == Kind::kImage ? config.img_embeddings_url : config.text_embeddings_url;
  if (!url || url->empty()) {
    if (config.embeddings_in_tar) return;
    throw ConfigError(
        "/data/{}: No {} embeddings source specified.\n"
        "  Give the folder of the .npy files, or set /data/embeddings_in_tar for shards that hold "
        "<key>.{}.",
        words_.key,
        words_.name,
        words_.field);
  }
  if (const std::optional<std::string> manifest = embed_manifest_of(*url)) {
    const std::string made = std::filesystem::path(*manifest).parent_path().string();
    throw DataError(
        "/data/{}: `shards embed` made {}: its rows follow the samples that were embedded, but here the digits of a "
        "key are its row, so after one that was left out all others would be wrong\n  The shards in {} hold the "
        "embeddings: name them in /data/webdataset_base_url, set /data/embeddings_in_tar to true, and /data/{} to null.",
        words_.key,
        printable(*url),
        printable(made),
        words_.key);
  }
  folder_.emplace(*url,
                  words_.name,
                  options.shard_width,
                  SourceOptions{.allow_pipe = config.allow_pipe},
                  "",
                  width_);
  row_shape_ = folder_->row_shape();
  if (width_ && !row_shape_.empty() && row_shape_.back() != *width_) {
    throw DataError(
        "{}: expected {} embeddings of width {} ({} in /decoder/unets), got width {}\n"
        "  Set {} to {}, or give embeddings of width {}.",
        public_url(folder_->shape_file()),
        words_.name,
        *width_,
        words_.width_key,
        row_shape_.back(),
        words_.width_key,
        row_shape_.back(),
        *width_);
  }
  check_coverage(options);
}

void SampleEmbeddings::check_coverage(const LoaderOptions& options) const {
  for (size_t i = 0; i < options.urls.size(); ++i) {
    if (folder_->has(options.urls.number(i))) return;
  }
  throw DataError(
      "/data/{}: none of the {} of the split \"{}\" has an embedding file: {}, first shard {}.\n"
      "  The digits at the end of a file's name must be the number of its shard.",
      words_.key,
      counted(static_cast<int64_t>(options.urls.size()), "shard"),
      options.split,
      folder_->describe(),
      shown_shard(options.urls.front()));
}

std::string SampleEmbeddings::open_shard(const std::string& url,
                                         const SourceOptions& source,
                                         DropLog& drops) {
  rows_.reset();
  if (!folder_) return "";
  const int64_t shard = shard_number(url);
  std::string fault = fmt::format("no file for it in {}", public_url(folder_->folder()));
  try {
    if (folder_->has(shard)) {
      rows_ = folder_->load(shard, source);
      fault.clear();
    }
  } catch (const DataError& error) {
    fault = error.what();
  }
  if (!fault.empty()) {
    fault = fmt::format("{}: {}", shown_shard(url), fault);
    drops.add(drop::kShardWithoutEmbeddings, fault);
    return fault;
  }
  return check_shape(rows_->row_shape(), public_url(folder_->url(shard)), drops);
}

/// The first embedding seen sets the shape; a batch cannot hold another.
/// @return what is wrong with it; empty if nothing is
std::string SampleEmbeddings::check_shape(const std::vector<int64_t>& shape,
                                          const std::string& where,
                                          DropLog& drops) {
  if (row_shape_.empty() && (!width_ || shape.back() == *width_)) row_shape_ = shape;
  if (shape == row_shape_) return "";
  std::string expected = shape_text(row_shape_);
  if (row_shape_.empty()) {
    expected = fmt::format("width {}", *width_);
    if (kind_ != Kind::kLatent)
      expected += fmt::format(": set {} in /decoder/unets to {}, or give embeddings of that width",
                              words_.width_key,
                              shape.back());
  }
  std::string fault = fmt::format(
      "{}: {} embedding of shape {}, expected {}", where, words_.name, shape_text(shape), expected);
  drops.add(drop::kWrongEmbeddingShape, fault);
  return fault;
}

bool SampleEmbeddings::take_from_folder(const std::string& key,
                                        int64_t index_width,
                                        const std::string& where,
                                        EmbeddingRow& row,
                                        DropLog& drops) const {
  const auto index = row_of_key(key, index_width);
  if (!index || *index >= rows_->rows()) {
    drops.add(words_.none,
              index ? fmt::format("{}: no row {} among its shard's {} of {} embeddings",
                                  where,
                                  *index,
                                  counted(rows_->rows(), "row"),
                                  words_.name)
                    : fmt::format("{}: the key does not end in {} digits", where, index_width));
    return false;
  }
  row = {rows_, *index};
  return true;
}

bool SampleEmbeddings::take_from_sample(GroupedSample& sample,
                                        const std::string& where,
                                        EmbeddingRow& row,
                                        DropLog& drops) {
  const std::string* content = find_field(sample, words_.field);
  // A plain .npy field is the image embedding.
  if (content == nullptr && kind_ == Kind::kImage) content = find_field(sample, "npy");
  if (content == nullptr) {
    drops.add(words_.none, fmt::format("{}: no field {}", where, words_.field));
    return false;
  }
  try {
    row = parse_embedding(*content, words_.name, fmt::format("{}.{}", where, words_.field));
  } catch (const DataError& error) {
    drops.add(words_.none, error.what());
    return false;
  }
  return check_shape(row.rows->row_shape(), where, drops).empty();
}

bool SampleEmbeddings::take(GroupedSample& sample,
                            int64_t index_width,
                            const std::string& where,
                            EmbeddingRow& row,
                            DropLog& drops) {
  if (!needed_) return true;
  const bool found = folder_ ? take_from_folder(sample.key, index_width, where, row, drops)
                             : take_from_sample(sample, where, row, drops);
  if (!found) return false;
  if (row.rows->is_zero(row.row)) {
    drops.add(words_.zero, fmt::format("{}: row {} is all zero", where, row.row));
    return false;
  }
  if (!row.rows->is_finite(row.row)) {
    drops.add(drop::kEmbeddingNotFinite,
              fmt::format("{}: row {} of its {} embedding", where, row.row, words_.name));
    return false;
  }
  return true;
}

}  // namespace dalle2
