// SPDX-License-Identifier: MIT
#include "trainer/tensor_group.h"

#include <torch/types.h>

#include <algorithm>

#include "base/error.h"

namespace dalle2 {

std::vector<ChunkRange> chunk_ranges(int64_t batch, std::optional<int64_t> max_batch_size) {
  const int64_t size = max_batch_size.value_or(batch);
  std::vector<ChunkRange> ranges;
  for (int64_t begin = 0; begin < batch; begin += size) {
    ranges.push_back({begin, std::min(size, batch - begin)});
  }
  return ranges;
}

int64_t samples_of(const at::Tensor& batch, const char* name, const char* shape, int64_t dims) {
  if (batch.defined() && batch.dim() == dims && batch.size(0) > 0) return batch.size(0);
  throw DataError("{}: expected a batch {} of at least one, got {}",
                  name,
                  shape,
                  batch.defined() ? c10::str(batch.sizes()) : "nothing");
}

int64_t sample_batch(const DecoderSampleOptions& options) {
  for (const at::Tensor& tensor :
       {options.image_embeds, options.text_encodings, options.image, options.inpaint_image}) {
    if (tensor.defined()) return tensor.size(0);
  }
  return options.batch_size;
}

}  // namespace dalle2
