// SPDX-License-Identifier: MIT
#include "data/embeddings/embeddings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/captions.h"
#include "data/shards/picture_shards.h"
#include "io/files/atomic_file.h"
#include "io/files/listing.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Files that are looked into for rows of the width asked for.
constexpr int kMostReadForWidth = 8;
/// Files that a server refuses before the folder counts as refused.
constexpr int kMostRefused = 3;

/// "img_emb_" and 12 of img_emb_00012, "" and 12 of 00012; none for another name.
struct EmbeddingName {
  std::string prefix;
  int64_t shard = 0;
};
std::optional<EmbeddingName> parse_name(const std::string& stem) {
  const size_t digits = stem.rfind('_') + 1;  // 0 without an underscore
  const auto shard = number_of_digits(stem.substr(digits));
  if (!shard) return std::nullopt;
  return EmbeddingName{stem.substr(0, digits), *shard};
}

/// The absolute path of a local folder of embeddings, given with or without {} or a slash at its end; else "".
fs::path embedding_folder(const std::string& url) {
  if (url.empty() || !is_local_url(url)) return "";
  std::error_code ignored;
  const fs::path folder =
      (fs::absolute(local_path(url), ignored) / "").lexically_normal().parent_path();
  return folder.filename().string().find('{') == std::string::npos ? folder : folder.parent_path();
}

size_t axes_of(const std::string& kind) {
  return kind == "image" ? 1 : kind == "text" ? 2 : 3;
}

/// @param leading the axes before those of a row, for the message: "rows, " or ""
void check_axes(const std::string& kind,
                const std::vector<int64_t>& row_shape,
                const char* leading,
                const std::string& origin) {
  if (row_shape.size() == axes_of(kind)) return;
  if (kind == "image") {
    throw DataError(
        "{}: expected image embeddings of shape [{}width], got rows of shape {}.\n  Rows of two "
        "axes are text encodings, one vector per token.",
        origin,
        leading,
        shape_text(row_shape));
  }
  if (kind == "latent") {
    throw DataError(
        "{}: expected a latent of shape [channels, height, width], got {}.\n  `dalle2-train shards "
        "encode` writes them.",
        origin,
        shape_text(row_shape));
  }
  throw DataError(
      "{}: expected text encodings of shape [{}length, width], one vector per token, got rows of "
      "shape {}.\n  One vector per caption is CLIP's text embedding, which a decoder does not "
      "take: give the text encoder's last hidden states.",
      origin,
      leading,
      shape_text(row_shape));
}

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

EmbeddingRows::EmbeddingRows(NpyArray array, const std::string& origin) : array_(std::move(array)) {
  if (array_.shape.size() < 2 || array_.shape.size() > 4) {
    throw DataError(
        "{}: expected embeddings of shape [rows, width] or [rows, length, width], or latents of "
        "shape [rows, channels, height, width], got {}.",
        origin,
        shape_text(array_.shape));
  }
  if (array_.type != NpyType::kFloat16 && array_.type != NpyType::kFloat32 &&
      array_.type != NpyType::kFloat64) {
    throw DataError(
        "{}: expected embeddings of float16, float32 or float64, got whole numbers.\n"
        "  Store the encoder's output as it is.",
        origin);
  }
  item_size_ = npy_item_size(array_.type);
  row_shape_.assign(array_.shape.begin() + 1, array_.shape.end());
  row_numel_ = c10::multiply_integers(row_shape_);
  if (row_numel_ <= 0) {
    throw DataError("{}: embeddings without width, shape {}.", origin, shape_text(array_.shape));
  }
}

bool EmbeddingRows::is_zero(int64_t row) const {
  D2_CHECK(row >= 0 && row < rows(), "row {} of {}", row, rows());
  const size_t size = static_cast<size_t>(row_numel_) * item_size_;
  const char* byte = array_.bytes.data() + static_cast<size_t>(row) * size;
  for (size_t i = 0; i < size; ++i) {
    // The sign is in the last byte of a little-endian float: -0 is zero too.
    const unsigned mask = i % item_size_ == item_size_ - 1 ? 0x7fU : 0xffU;
    if ((static_cast<unsigned char>(byte[i]) & mask) != 0) return false;
  }
  return true;
}

bool EmbeddingRows::is_finite(int64_t row) const {
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(row_numel()));
  array_.copy_row_float32(row, values.data());
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

Json read_manifest(const std::string& path) {
  if (!path_exists(path)) return Json::object();
  Json object = parse_untrusted_object(read_file(path));
  if (object.is_object()) return object;
  throw DataError(
      "{}: expected a JSON object\n  Make its shards again. Without this file, no run is checked against them.",
      printable(path));
}

std::string clip_of_manifest(const std::string& path) {
  return text_member(read_manifest(path), kClipOfEmbeddings);
}

std::optional<std::string> embed_manifest_of(const std::string& url) {
  const std::string name = embedding_folder(url).filename().string();
  if (name != "img_emb" && name != "text_emb" && name != "text_encodings") return std::nullopt;
  return embed_manifest_beside(url);
}

std::optional<std::string> embed_manifest_beside(const std::string& url) {
  const fs::path given = embedding_folder(url);
  if (given.empty()) return std::nullopt;
  std::error_code ignored;
  for (const fs::path& folder : {given, fs::weakly_canonical(given, ignored)}) {  // of a link
    const std::string beside = (folder.parent_path() / kEmbeddingsManifest).string();
    if (read_manifest(beside).contains(kClipOfEmbeddings)) return beside;
  }
  return std::nullopt;
}

EmbeddingFolder::EmbeddingFolder(const std::string& folder,
                                 std::string kind,
                                 int64_t shard_width,
                                 const SourceOptions& source,
                                 const std::string& key,
                                 std::optional<int64_t> width)
    : folder_(folder),
      kind_(std::move(kind)),
      key_(!key.empty()       ? key
           : kind_ == "image" ? "/data/img_embeddings_url"
                              : "/data/text_embeddings_url") {
  // The name of a folder may have braces.
  const bool is_listed = is_local_url(folder) && is_folder(local_path(folder));
  if (!is_listed && folder.find('{') != std::string::npos) {
    numbered_ = parse_url_template(folder, shard_width, key_);
    if (const auto numbers = existing_numbers(*numbered_)) {
      for (const int64_t number : *numbers) urls_.emplace(number, numbered_->with(number));
      numbered_.reset();
    }
  } else {
    add_files(source.http);
  }
  if (numbered_) return;  // which files there are shows when they are read
  if (urls_.empty()) {
    const std::string below = local_path(folder) + (kind_ == "image" ? "/img_emb" : "/text_emb");
    throw DataError(
        "{}: the folder \"{}\" has no embedding files named <prefix>_<shard>.npy or <shard>.npy.\n  {}",
        key_,
        public_url(folder),
        is_local_url(folder) && is_folder(below)
            ? fmt::format("clip-retrieval puts them one folder below: give {}.", below)
            : "Name them like img_emb_00012.npy for shard 12, with one row per sample.");
  }
  find_row_shape(width, source);
}

/// A broken file costs its shard, not the run: the shape is that of the first one that is whole.
void EmbeddingFolder::find_row_shape(std::optional<int64_t> width, const SourceOptions& source) {
  std::string first_fault;
  int read = 0, refused = 0;
  for (const auto& [shard, url] : urls_) {
    try {
      const std::vector<int64_t> shape = load(shard, source)->row_shape();
      const bool fits = !width || shape.back() == *width;
      if (row_shape_.empty() || fits) {
        row_shape_ = shape;
        shape_file_ = url;
      }
      if (fits || ++read == kMostReadForWidth) return;
    } catch (const HttpStatusError&) {
      if (++refused == kMostRefused && row_shape_.empty()) throw;
    } catch (const DataError& error) {
      if (first_fault.empty()) first_fault = error.what();
    }
  }
  if (!row_shape_.empty()) return;
  throw DataError(
      "{}: none of the {} in \"{}\" can be read; the first: {}\n  Make the embeddings again, or "
      "name another folder.",
      key_,
      counted(file_count(), "embedding file"),
      public_url(folder_),
      first_fault);
}

void EmbeddingFolder::add_files(const HttpOptions& http) {
  std::vector<ListedFile> files;
  try {
    files = list_folder(folder_, http);
  } catch (const DataError& error) {
    throw DataError("{}: {}.", key_, error.what());
  }
  std::string prefix;
  for (const ListedFile& file : files) {
    if (!file.name.ends_with(".npy")) continue;
    const auto name = parse_name(file.name.substr(0, file.name.size() - 4));
    if (!name) {
      log_warning(
          "data", "{} has no shard number at its end and is not used", public_url(file.url));
      continue;
    }
    if (!urls_.empty() && name->prefix != prefix) {
      throw DataError(
          "{}: the folder \"{}\" has embeddings of two kinds, \"{}...npy\" and \"{}...npy\".\n"
          "  Keep each kind in a folder of its own.",
          key_,
          public_url(folder_),
          std::min(prefix, name->prefix),
          std::max(prefix, name->prefix));
    }
    prefix = name->prefix;
    const auto [other, added] = urls_.emplace(name->shard, file.url);
    if (!added) {
      throw DataError("{}: two embedding files for shard {}: {} and {}.\n  Keep one of them.",
                      key_,
                      name->shard,
                      public_url(std::min(other->second, file.url)),
                      public_url(std::max(other->second, file.url)));
    }
  }
}

std::string EmbeddingFolder::url(int64_t shard) const {
  return numbered_ ? numbered_->with(shard) : urls_.at(shard);
}

std::string EmbeddingFolder::describe() const {
  if (numbered_) return public_url(folder_);
  return fmt::format("{} for shards {} to {}",
                     counted(file_count(), "file"),
                     urls_.begin()->first,
                     urls_.rbegin()->first);
}

std::shared_ptr<const EmbeddingRows> EmbeddingFolder::load(int64_t shard,
                                                           const SourceOptions& source) const {
  const std::string address = url(shard), shown = public_url(address);
  std::string content;
  try {
    content = is_local_url(address) ? read_file(local_path(address))
                                    : read_source(open_source(address, source), shown);
  } catch (const HttpStatusError& error) {
    if (!error.says_absent()) throw;
    throw DataError("{}", error.what());
  }
  auto rows = std::make_shared<const EmbeddingRows>(parse_npy(std::move(content), shown), shown);
  check_axes(kind_, rows->row_shape(), "rows, ", shown);
  return rows;
}

std::optional<int64_t> row_of_key(const std::string& key, int64_t index_width) {
  const size_t width = static_cast<size_t>(std::max<int64_t>(index_width, 0));
  return number_of_digits(key.substr(key.size() - std::min(key.size(), width)));
}

EmbeddingRow parse_embedding(const std::string& content,
                             const std::string& kind,
                             const std::string& origin) {
  NpyArray array = parse_npy(content, origin);
  if (array.shape.size() != axes_of(kind) + 1 || array.shape[0] != 1) {
    array.shape.insert(array.shape.begin(), 1);
  }
  auto rows = std::make_shared<const EmbeddingRows>(std::move(array), origin);
  check_axes(kind, rows->row_shape(), "", origin);
  return {std::move(rows), 0};
}

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
  open(*url, options.shard_width, {.allow_pipe = config.allow_pipe});
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

void SampleEmbeddings::open(const std::string& folder,
                            int64_t shard_width,
                            const SourceOptions& source,
                            const std::string& key) {
  folder_ = std::make_shared<const EmbeddingFolder>(
      folder, words_.name, shard_width, source, key, width_);
  row_shape_ = folder_->row_shape();
}

void SampleEmbeddings::check_coverage(const LoaderOptions& options) const {
  for (size_t i = 0; i < options.urls.size(); ++i)
    if (folder_->has(shard_number(options.urls[i]))) return;
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
  try {
    if (!folder_->has(shard))
      throw DataError("no file for it in {}", public_url(folder_->folder()));
    rows_ = folder_->load(shard, source);
    return check_shape(rows_->row_shape(), public_url(folder_->url(shard)), drops);
  } catch (const DataError& error) {
    const std::string fault = fmt::format("{}: {}", shown_shard(url), error.what());
    drops.add(drop::kShardWithoutEmbeddings, fault);
    return fault;
  }
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

bool SampleEmbeddings::take_from_sample(const GroupedSample& sample,
                                        const std::string& where,
                                        EmbeddingRow& row,
                                        DropLog& drops) {
  // A plain .npy field is the image embedding.
  const std::string* content =
      kind_ == Kind::kImage ? sample.find({words_.field, "npy"}) : sample.find({words_.field});
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

bool SampleEmbeddings::take(const GroupedSample& sample,
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
