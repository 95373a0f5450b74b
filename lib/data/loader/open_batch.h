// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "data/loader/batch.h"
#include "data/loader/drop_log.h"
#include "data/loader/shard_dataset.h"
#include "io/pictures/image.h"

namespace dalle2 {

/// A batch being filled. Places are given in order, under the loader's lock; the samples are
/// written to their places by several threads at once.
struct OpenBatch {
  /// Room for `options.batch_size` samples like the first.
  OpenBatch(const LoaderOptions& options, const Image& picture, const Candidate& first);

  /// Gives the sample its place. @return the place
  /// @throws DataError if the picture is not of the size of the batch; `split` is named in it
  int64_t add(const Image& picture, Candidate& candidate, const std::string& split);
  /// Writes pixels and embeddings straight into the tensors of the batch.
  void write(int64_t place, const Image& picture, const Candidate& candidate) const;
  /// No more samples. Others may still be written.
  void close(const LanePosition& position, DropLog&& drops_before);
  /// Closed, and every sample written.
  bool is_ready() const { return closed && written == added; }

  /// The batch, cut to the samples there are. Only once it is ready.
  Batch take();

  Batch batch;
  int width = 0, height = 0;       ///< of its pictures, pixels
  int64_t added = 0, written = 0;  ///< samples with a place; those that were written to it
  bool closed = false;
  DropLog drops;  ///< since the batch before, up to its last sample
};

}  // namespace dalle2
