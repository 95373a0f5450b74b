// SPDX-License-Identifier: MIT
#include "data/loader/open_batch.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/pictures/planes.h"
#include "data/pictures/preprocess.h"

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

OpenBatch::OpenBatch(const LoaderOptions& options, const Image& picture, const Candidate& first)
    : width(picture.width), height(picture.height) {
  batch.images = empty_for_batch(options.byte_pictures ? at::kByte : at::kFloat,
                                 {options.batch_size, options.channels, height, width},
                                 options.gpu);
  batch.image_embeds = empty_like_rows(options, first.image_embed);
  batch.text_encodings = empty_like_rows(options, first.text_encoding);
  batch.latents = empty_like_rows(options, first.latent);
}

int64_t OpenBatch::add(const Image& picture, Candidate& candidate, const std::string& split) {
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

void OpenBatch::write(int64_t place, const Image& picture, const Candidate& candidate) const {
  write_picture(picture, batch.images, place);
  write_embedding(candidate.image_embed, place, batch.image_embeds);
  write_embedding(candidate.text_encoding, place, batch.text_encodings);
  write_embedding(candidate.latent, place, batch.latents);
}

void OpenBatch::close(const LanePosition& position, DropLog&& drops_before) {
  batch.position.lanes = {position};
  drops = std::move(drops_before);
  closed = true;
}

Batch OpenBatch::take() {
  batch.tensors([&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.narrow(0, 0, added);
  });
  return std::move(batch);
}

}  // namespace dalle2
