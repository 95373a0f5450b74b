// SPDX-License-Identifier: MIT
// A decoder run: train, validate, evaluate, sample and save, epoch by epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "dist/process_group.h"
#include "metrics/image_metrics.h"
#include "run/checkpoints/clip_weights.h"
#include "run/decoder/decoder_data.h"
#include "run/decoder/decoder_evaluation.h"
#include "run/dry_run.h"
#include "run/shards/shard_run.h"
#include "trainer/decoder_trainer.h"

namespace dalle2 {

/// The config as it goes into a checkpoint: with all defaults, but in /decoder without nulls and
/// without extensions of ours that are off. The reference builds its Decoder from all it finds
/// there, and refuses both.
ConfigTexts config_texts(const LoadedDecoderConfig& loaded);

class DecoderRun : public ShardRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process);

  void open() override;

 private:
  DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process, const DecoderClip& clip);
  void prepare() override;
  std::optional<int64_t> accumulate() override;
  void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) override;
  void show_snapshot() override { pictures_.draw_training_samples(); }
  void evaluate_epoch() override;
  void sample_epoch() override;
  MetricValues compute_metrics();
  void log_metrics(const MetricValues& found);

  const LoadedDecoderConfig& loaded_;
  const TrainDecoderConfig& config_;
  DecoderTrainer& trainer_;
  DecoderClip clip_;
  std::vector<int64_t> trained_unets_;  // numbers from 1
  DecoderPictures pictures_;
  std::unique_ptr<ImageMetrics> metrics_;        // null: none is asked for
  std::shared_ptr<ClipEmbedder> clip_of_score_;  // null: no CLIP score is asked for
};

/// What such a run would take. @throws as it would
void dry_run(const LoadedDecoderConfig& loaded, int64_t processes, const StartOptions& start);

/// A decoder run without data. @param clip null: none
DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const ClipEmbedder* clip);

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
                                         const ClipEmbedder* clip,
                                         const at::Device& device,
                                         ProcessGroup* group);

}  // namespace dalle2
