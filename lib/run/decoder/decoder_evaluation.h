// SPDX-License-Identifier: MIT
// Drawing for the samples of a split: for the pictures of a log, and for metrics.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "data/loader/batch.h"
#include "dist/process_group.h"
#include "metrics/image_metrics.h"
#include "run/decoder/decoder_data.h"
#include "run/loop/run_session.h"
#include "run/shards/shard_data.h"
#include "trainer/decoder_trainer.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

/// How a run's decoder draws.
struct DrawSettings {
  OneOrMany<double> cond_scale = 1.0;
  int64_t first_unet = 1, last_unet = 1;  ///< from 1; unets before the first get the real image
  at::Device device = at::kCPU;
  DecoderClip clip = {};
};

/// The metrics that a config asks for, their networks open and tried, with the real images' features
/// that earlier runs left on the disk; null if it asks for none. @throws ConfigError
std::unique_ptr<ImageMetrics> make_metrics(const LoadedDecoderConfig& loaded,
                                           const at::Device& device);

/// The CLIP of /evaluate/clip_score, on `device` and in float32; null if it is not asked for.
/// @param own of /decoder/clip @throws ConfigError, DataError
std::shared_ptr<ClipEmbedder> open_clip_of_score(const LoadedDecoderConfig& loaded,
                                                 const DecoderClip& own,
                                                 const at::Device& device);

/// Keeps the real images' features for later runs, if there are new ones. What goes wrong is a
/// warning.
void keep_real_features(const TrainDecoderConfig& config, ImageMetrics& metrics);

/// The first and the last unet, from 1, that a run of this config trains: it draws with these.
std::pair<int64_t, int64_t> trained_unets(const LoadedDecoderConfig& loaded);

/// To draw the rows `range` of a batch. The noise belongs to the row: whatever is drawn beside it
/// changes nothing.
/// @param noise_seed of all that is drawn together @param rows their numbers, to address the noise by
DecoderSampleOptions draw_options(const Batch& batch,
                                  const ChunkRange& range,
                                  const DrawSettings& settings,
                                  uint64_t noise_seed,
                                  const std::vector<int64_t>& rows);

struct DecoderEvaluation {
  const ShardData* data;
  std::string split = "val";
  /// Of samples: the first of the split, fewer if it has fewer, or some of their pictures cannot
  /// be decoded.
  int64_t count = 1;
  int64_t batch_size = 1;  ///< of samples drawn at once
  int64_t seed = 0;
  DrawSettings draw;
  const ClipEmbedder* clip_of_score = nullptr;  ///< of /evaluate/clip_score; null without
  std::function<at::Tensor(const DecoderSampleOptions&)> sample;
  /// Before each step of a sampler, with what to show of it; may throw to end the evaluation.
  std::function<void(const std::string& where)> on_step;
};

/// Draws this rank's share of the samples and shows the pairs to the metrics; says nothing to other
/// ranks. A sample is known by its place in the shards: neither the number of ranks nor what one of
/// them cannot read changes another's. @throws DataError, NetworkError, what on_step throws
void show_pairs(const DecoderEvaluation& evaluation, const RankInfo& rank, ImageMetrics& metrics);

/// Rank 0's batch on all ranks; all have to call it. Of `own` on the others nothing is looked at.
/// @return none if rank 0 has none
std::optional<Batch> batch_of_main(ProcessGroup& group, std::optional<Batch> own);

}  // namespace dalle2
