// SPDX-License-Identifier: MIT
#include "data/embeddings/prior_dataset.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "data/shards/captions.h"

namespace dalle2 {

/// Which rows of a batch are left out, and why: the first reason that was found of each.
class PriorDataset::RowFaults {
 public:
  /// @param rows of the batch, which outlive this
  explicit RowFaults(const std::vector<int64_t>& rows) : rows_(rows), faults_(rows.size()) {}

  /// May be called by several threads, for a row each.
  void add(int64_t row, const char* reason, const std::string& text = "") {
    Fault& fault = faults_[static_cast<size_t>(row)];
    if (fault.reason == nullptr) fault = {reason, text};
  }
  void add_not_finite(const at::Tensor& rows) {
    const at::Tensor bad = rows.isfinite().flatten(1).all(1).logical_not().nonzero().flatten();
    for (int64_t i = 0; i < bad.numel(); ++i)
      add(bad[i].item<int64_t>(), drop::kEmbeddingNotFinite);
  }

  void leave_out(PriorBatch& batch) const {
    std::vector<int64_t> good;
    for (size_t i = 0; i < faults_.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const Fault& fault = faults_[i];
      if (fault.reason == nullptr) {
        good.push_back(row);
      } else {
        batch.drops.add(
            fault.reason,
            fmt::format("row {}{}{}", rows_[i], fault.text.empty() ? "" : ": ", fault.text));
      }
    }
    if (batch.drops.empty()) return;
    const at::Tensor rows = at::tensor(good, at::kLong);
    for (at::Tensor* tensor :
         {&batch.image_embeds, &batch.text_embeds, &batch.text_encodings, &batch.pictures}) {
      if (tensor->defined()) *tensor = tensor->index_select(0, rows);
    }
    if (batch.captions.empty()) return;
    std::vector<std::string> captions;
    for (const int64_t row : good)
      captions.push_back(std::move(batch.captions[static_cast<size_t>(row)]));
    batch.captions = std::move(captions);
  }

 private:
  struct Fault {
    const char* reason = nullptr;  // null: the row is used
    std::string text = {};
  };
  const std::vector<int64_t>& rows_;
  std::vector<Fault> faults_;
};

PriorDataset::PriorDataset(const PriorDataConfig& config,
                           const PriorConfig& prior,
                           int64_t seed,
                           const std::optional<ClipPreprocessing>& clip)
    : seed_(seed) {
  const auto table = [&](const std::optional<std::string>& url,
                         const char* key,
                         const std::vector<int64_t>& row_shape) {
    // The image embeddings are read first, and decide the width of the others. A CLIP decides for all.
    const auto advice = [&](int64_t width) {
      const int64_t wanted = prior.image_embed_dim;
      if (clip)
        return fmt::format("Give embeddings of width {}, of the CLIP of /prior/clip.", wanted);
      if (url != config.image_url)
        return fmt::format("Give embeddings of width {}, as those of /data/image_url are.", wanted);
      return fmt::format(
          "Set /prior/image_embed_dim and /prior/net/dim to {}, or give embeddings of width {}.",
          width,
          wanted);
    };
    return url ? std::make_unique<EmbeddingTable>(*url, key, row_shape, advice) : nullptr;
  };
  images_ = table(config.image_url, "/data/image_url", {prior.image_embed_dim});
  if (clip) {
    captions_ = std::make_unique<CaptionTable>(
        config.meta_url.value(), "/data/meta_url", config.caption_key, config);
    caption_lines_ = config.caption_lines;
  } else {
    texts_ = table(config.text_url, "/data/text_url", {prior.image_embed_dim});
    encodings_ =
        table(config.text_encodings_url, "/data/text_encodings_url", {0, prior.image_embed_dim});
    const int64_t tokens = encodings_ ? encodings_->row_shape().front() : 0;
    if (tokens > prior.net.text_len()) {
      log_warning("data",
                  "/prior/net/max_text_len is {}, and the text encodings have {}: the rest is cut",
                  prior.net.text_len(),
                  counted(tokens, "token"));
    }
  }
  if (!images_) {
    if (!captions_->has_pictures()) {
      throw DataError(
          "/data/image_url: expected a folder of image embeddings, as '{}' (/data/meta_url) has no "
          "pictures, got none\n  Give the folder, or .tar shards with pictures as /data/meta_url.",
          *config.meta_url);
    }
    side_ = clip.value().side;
    const DecodeOptions options = decode_options(config);
    preprocess_ = std::make_unique<Preprocess>(clip_preprocessing(*clip), options);
    small_pictures_ = std::make_unique<SmallPictures>(*clip);
  }
  check_lengths(config);
  end_ = std::min(all_rows(), config.num_data_points);
  const auto share = [&](double part) {
    return static_cast<int64_t>(part * static_cast<double>(end_));
  };
  train_end_ = share(config.splits.train);
  val_end_ = train_end_ + share(config.splits.val);
  if (train_end_ == 0) {
    throw DataError("/data/splits: a share of {} of {} rows leaves nothing to train on",
                    config.splits.train,
                    end_);
  }
  if (config.shuffle_rows) choose_blocks();
}

/// Rows on this machine are read one by one; of remote ones whole blocks are fetched.
void PriorDataset::choose_blocks() {
  constexpr uint64_t kBlockBytes = uint64_t{4} << 20;  // of the table with the widest rows
  block_rows_ = train_end_;
  for (const EmbeddingTable* table : {images_.get(), texts_.get(), encodings_.get()}) {
    if (table == nullptr || !table->is_remote()) continue;
    const uint64_t fitting = std::max<uint64_t>(1, kBlockBytes / table->row_bytes());
    block_rows_ = std::min(block_rows_, static_cast<int64_t>(fitting));
  }
}

void PriorDataset::check_lengths(const PriorDataConfig& config) const {
  if (!images_) return;  // samples of shards are whole
  const auto check = [&](const auto& table, const char* key, const auto& url) {
    if (!table) return;
    check_pairs("/data/image_url", images_->files(), key, table->files());
    if (table->rows() == images_->rows()) return;
    throw DataError(
        "{}: '{}' has {} rows and /data/image_url {}: row n of each must belong to sample n",
        key,
        public_url(*url),
        table->rows(),
        images_->rows());
  };
  check(texts_, "/data/text_url", config.text_url);
  check(encodings_, "/data/text_encodings_url", config.text_encodings_url);
  check(captions_, "/data/meta_url", config.meta_url);
}

PriorDataset::Range PriorDataset::range(const std::string& split) const {
  if (split == "train") return {0, train_end_};
  if (split == "val") return {train_end_, val_end_};
  return {val_end_, end_};
}

std::string PriorDataset::names() const {
  Fnv1a<uint32_t> hash;
  for (const EmbeddingTable* table : {images_.get(), texts_.get(), encodings_.get()}) {
    if (table == nullptr) continue;
    for (const TableFile& file : table->files())
      hash.add_line(fmt::format("{} {}", public_url(file.path), file.rows));
  }
  if (captions_) hash.add_line(fmt::format("{} captions", captions_->rows()));
  return hash.hex();
}

int64_t PriorDataset::rows(const std::string& split) const {
  const Range rows = range(split);
  return rows.end - rows.begin;
}

std::vector<int64_t> PriorDataset::rows_of(const std::string& split,
                                           int64_t epoch,
                                           int64_t begin,
                                           int64_t count) const {
  const Range range_of_split = range(split);
  count = std::min(count, range_of_split.end - range_of_split.begin - begin);
  if (count <= 0) return {};
  if (block_rows_ > 0 && split == "train")
    return RowOrder(train_end_, block_rows_, seed_, epoch).rows_at(begin, count);
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), range_of_split.begin + begin);
  return rows;
}

std::optional<PriorBatch> PriorDataset::batch(const std::string& split,
                                              int64_t epoch,
                                              int64_t begin,
                                              int64_t count) const {
  const std::vector<int64_t> rows = rows_of(split, epoch, begin, count);
  if (rows.empty()) return std::nullopt;
  const bool is_shuffled = block_rows_ > 0 && split == "train";
  PriorBatch batch;
  batch.rows = std::ssize(rows);
  RowFaults faults(rows);
  const auto read = [&](const std::unique_ptr<EmbeddingTable>& table, at::Tensor& values) {
    if (!table) return;
    values = is_shuffled ? table->gather(rows, block_rows_) : table->read(rows[0], batch.rows);
    faults.add_not_finite(values);
  };
  read(images_, batch.image_embeds);
  read(texts_, batch.text_embeds);
  read(encodings_, batch.text_encodings);
  if (captions_) read_captions(rows, epoch, batch, faults);
  if (!images_) read_pictures(rows, batch, faults);
  faults.leave_out(batch);
  return batch;
}

void PriorDataset::read_captions(const std::vector<int64_t>& rows,
                                 int64_t epoch,
                                 PriorBatch& batch,
                                 RowFaults& faults) const {
  for (int64_t i = 0; i < batch.rows; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    SampleRandom random(seed_, epoch, "caption line", "", row);
    batch.captions.push_back(
        chosen_lines(captions_->caption(row), caption_lines_, [&] { return random(); }));
    if (batch.captions.back().empty()) faults.add(i, drop::kNoCaption);
  }
}

void PriorDataset::read_pictures(const std::vector<int64_t>& rows,
                                 PriorBatch& batch,
                                 RowFaults& faults) const {
  batch.pictures = at::zeros({batch.rows, 3, side_, side_}, at::kFloat);
  at::parallel_for(0, batch.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      try {
        const std::optional<std::string> content = captions_->picture(row);
        if (content) {
          const std::string where = fmt::format("row {}", row);
          small_pictures_->look_at(*content, "/data/meta_url: the picture of " + where);
          write_picture(preprocess_->apply(*content, where, [] { return 0U; }), batch.pictures, i);
        } else {
          faults.add(i, drop::kNoPicture);
        }
      } catch (const DataError& error) {
        faults.add(i, drop::kBrokenPicture, error.what());
      }
    }
  });
}

}  // namespace dalle2
