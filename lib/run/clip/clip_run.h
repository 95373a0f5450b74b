// SPDX-License-Identifier: MIT
// A run of a CLIP: train, validate and save, epoch by epoch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/clip/clip_run_config.h"
#include "io/text/clip_tokenizer.h"
#include "run/clip/clip_data.h"
#include "run/shards/shard_run.h"
#include "trainer/clip_trainer.h"

namespace dalle2 {

class ClipRun : public ShardRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  ClipRun(const LoadedClipConfig& loaded, const RunProcess& process);

 private:
  /// Looks at a picture. Takes the vocabulary of the checkpoint that the run resumes from, or makes one.
  void prepare() override;
  std::optional<int64_t> accumulate() override;
  void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) override;
  void evaluate_epoch() override;
  LogRecord step_values(double samples_per_second) override;
  void take_vocabulary(const std::string& merges, const std::string& where);
  ClipInputs inputs_of(const Batch& batch);

  const TrainClipConfig& config_;
  ClipTrainer& trainer_;
  std::optional<ClipTokenizer> tokenizer_;  // since prepare()
  LongCaptions long_captions_;
  ClipValidation validation_;
};

/// What such a run would take. @throws as it would
void dry_run(const LoadedClipConfig& loaded, int64_t processes, const StartOptions& start);

}  // namespace dalle2
