// SPDX-License-Identifier: MIT
// Pictures that a decoder run draws for its logs, beside the real ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "data/loader/batch.h"
#include "dist/process_group.h"
#include "run/decoder/decoder_data.h"
#include "run/loop/run_session.h"
#include "run/shards/shard_data.h"
#include "trainer/decoder_trainer.h"

namespace dalle2 {

/// Rank 0's batch on all ranks; all have to call it. Of `own` on the others nothing is looked at.
/// @return none if rank 0 has none
std::optional<Batch> batch_of_main(ProcessGroup& group, std::optional<Batch> own);

class DecoderPictures {
 public:
  /// What is passed by reference has to outlive this object.
  DecoderPictures(RunSession& session,
                  DecoderTrainer& trainer,
                  const ShardData& data,
                  const TrainDecoderConfig& config,
                  const DecoderClip& clip)
      : session_(session), trainer_(trainer), data_(data), config_(config), clip_(clip) {}

  /// Reads /train/n_sample_images samples of the training and of the test shards; all ranks have to
  /// call it.
  /// @throws DataError, NetworkError, StoppedError
  void load();
  /// Logs how the latents of the first of these are spread, for each stage with a VAE.
  void tell_latents() const;
  /// Draws all of them: those of the test shards, then those of the training shards. Checks for a
  /// stop signal before each step of a sampler. @throws StoppedError
  void draw_all();
  void draw_training_samples();

 private:
  struct Examples {
    Batch batch;
    std::string caption_prefix, section;
  };

  std::vector<Examples> examples(const std::string& split,
                                 const std::string& caption_prefix,
                                 const std::string& section);
  void draw(const Examples& examples);
  at::Tensor draw_part(const Examples& examples, const ChunkRange& range);
  void log(const Examples& examples, const at::Tensor& drawn);

  RunSession& session_;
  DecoderTrainer& trainer_;
  const ShardData& data_;
  const TrainDecoderConfig& config_;
  const DecoderClip& clip_;
  std::vector<Examples> training_, test_;
};

}  // namespace dalle2
