// SPDX-License-Identifier: MIT
// What a decoder needs of its shards; latents and embeddings that lie in them: what they were made of, and
// whether a run reads the same. Drawing for the samples of a split: for the pictures of a log, and for metrics.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "data/loader/loader_options.h"
#include "diffusion/decoder/decoder.h"
#include "dist/process_group.h"
#include "metrics/image_metrics.h"
#include "run/checkpoints/clip_weights.h"
#include "run/dry_run.h"
#include "run/loop/run_session.h"
#include "run/shards/shard_data.h"
#include "trainer/decoder_trainer.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

/// What /decoder/clip makes of a batch, because its shards do not hold it.
struct DecoderClip {
  std::shared_ptr<LoadedClip> embedder;  ///< null: there is none
  bool makes_image_embeds = false, makes_text_encodings = false;

  const LoadedClip* get() const { return embedder.get(); }
  /// @throws DataError for pictures smaller than those that it sees
  void check_pictures(const at::Tensor& images) const;
};

/// The CLIP of /decoder/clip, which fits the unets. @throws ConfigError, DataError
DecoderClip open_decoder_clip(const TrainDecoderConfig& config, const DecoderPlan& plan);

/// clip_sha256() of the CLIP of the run's image embeddings: of `clip`, or what `shards embed` wrote beside
/// the shards; empty if it is not known.
std::string clip_identity(const TrainDecoderConfig& config, const DecoderClip& clip);

/// Embeddings, latents and their widths, as the unets take them.
LoaderOptions decoder_needs(const TrainDecoderConfig& config, const DecoderPlan& plan);

/// A decoder draws squares, and its unets only make pictures smaller.
/// @param images [N, C, H, W] as the transforms leave them
/// @throws DataError for others, and for smaller ones than a unet that is trained takes
void check_sizes(const Batch& example, const DecoderTrainConfig& train, const DecoderPlan& plan);

/// A batch on `device`, as the decoder takes it. Copies to a GPU run on a stream of their own,
/// beside the step before; the current stream waits for them.
/// @param clip on that device
DecoderInputs to_inputs(const Batch& batch, const at::Device& device, const DecoderClip& clip = {});

/// In kLatentsManifest: the VAE, by weights_sha256().
inline constexpr const char* kVaeOfLatents = "vae_sha256";

/// Adds to a manifest how pictures were read. @param data of a config, as JSON with every default
void add_reading(nlohmann::ordered_json& manifest, const nlohmann::ordered_json& data);

/// Compares what the manifests beside the shards say with what the run would make of the pictures itself. A manifest that is
/// absent, or lacks a key, says nothing.
/// @param decoder with its VAEs @param clip null: the embeddings may be of any
/// @throws DataError
void check_stored_arrays(const LoadedDecoderConfig& loaded,
                         const Decoder& decoder,
                         const LoadedClip* clip);

/// How a run's decoder draws.
struct DrawSettings {
  OneOrMany<double> cond_scale = 1.0;
  int64_t first_unet = 1, last_unet = 1;  ///< from 1; unets before the first get the real image
  at::Device device = at::kCPU;
  DecoderClip clip = {};
};
/// With the unets that the config trains.
DrawSettings draw_settings(const LoadedDecoderConfig& loaded,
                           const at::Device& device,
                           const DecoderClip& clip);

/// The metrics that a config asks for, their networks open and tried, with the real images' features
/// that earlier runs left on the disk; null if it asks for none. @throws ConfigError
std::unique_ptr<ImageMetrics> make_metrics(const LoadedDecoderConfig& loaded,
                                           const at::Device& device);

/// The CLIP of /evaluate/clip_score, on `device` and in float32; null if it is not asked for.
/// @param own of /decoder/clip @throws ConfigError, DataError
std::shared_ptr<LoadedClip> open_clip_of_score(const LoadedDecoderConfig& loaded,
                                               const DecoderClip& own,
                                               const at::Device& device);

/// Keeps the real images' features for later runs, if there are new ones. What goes wrong is a
/// warning.
void keep_real_features(const TrainDecoderConfig& config, ImageMetrics& metrics);

/// To draw the rows `range` of a batch. The noise belongs to the row: whatever is drawn beside it
/// changes nothing.
/// @param noise_seed of all that is drawn together @param rows their numbers, to address the noise by
DecoderSampleOptions draw_options(const Batch& batch,
                                  const ChunkRange& range,
                                  const DrawSettings& settings,
                                  uint64_t noise_seed,
                                  const std::vector<int64_t>& rows);

struct DecoderEvaluation {
  /// How many samples there are, the first of the split, and how many are drawn at once. There are fewer if it
  /// has fewer, or some of their pictures cannot be decoded.
  const TrainDecoderConfig& config;
  const ShardData* data;
  std::string split = "val";
  DrawSettings draw;
  const LoadedClip* clip_of_score = nullptr;  ///< of /evaluate/clip_score; null without
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

/// The config as it goes into a checkpoint: with all defaults, but in /decoder without nulls and
/// without extensions of ours that are off. The reference builds its Decoder from all it finds
/// there, and refuses both.
ConfigTexts config_texts(const LoadedDecoderConfig& loaded);

/// A decoder run without data. @param clip null: none
DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const LoadedClip* clip);

/// Lets the unets of a plan compute as few levels again as it takes for a step to stay within the budget.
/// @param memory of the plan as its networks are; then as they are afterwards
/// @return "unet 1: ..., the backward pass recomputes 2 of 4 levels (about 1.2 GiB instead of 3.1 GiB)"; one
/// for each unet that does
/// @throws ConfigError if even all levels are not enough: what a step needs, and what to change
std::vector<std::string> fit_memory_budget(const DryRunPlan& plan,
                                           const DecoderTrainConfig& train,
                                           PeakMemory& memory);

/// The choice of rank 0, which builds a model of its own for it; zeros without a budget.
/// @param group null: one process
/// @throws on rank 0 what its model or steps throw, on the others ConfigError with its text
std::vector<int64_t> levels_to_recompute(const LoadedDecoderConfig& loaded,
                                         const LoadedClip* clip,
                                         const at::Device& device,
                                         ProcessGroup* group);

}  // namespace dalle2
