// SPDX-License-Identifier: MIT
// A run of a diffusion prior: train, validate and save by the clock, epoch by epoch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/prior/prior_run_config.h"
#include "data/embeddings/prior_dataset.h"
#include "diffusion/prior/prior.h"
#include "run/checkpoints/clip_weights.h"
#include "run/loop/row_run.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {

// From rows to what a prior takes.

/// @param prior_name, clip_name in messages @throws DataError for a CLIP whose embeddings, or
/// encodings where the prior takes them, have another width than the prior
void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name);

/// The CLIP of /prior/clip, which fits the prior; null for none. @throws as open_clip_of()
std::shared_ptr<ClipEmbedder> open_prior_clip(const PriorConfig& prior);

/// Rows for a run with that CLIP, or without. @throws as PriorDataset
PriorDataset prior_data(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// clip_sha256() of the CLIP whose embeddings of texts the run has: of `clip`, or what `shards embed`
/// has written beside the folder /data/text_url on this machine. Empty if it is not known.
std::string clip_identity(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// Warns if the embeddings of pictures are of another CLIP than those of texts, as far as `shards embed` has written that down.
void warn_of_several_clips(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// Reads training rows until one can be used, some 65,000 at most. @throws DataError if there are no
/// more, and none can
void check_usable(const PriorDataset& data, bool has_clip);
/// @throws DataError: none of the training rows can be used
[[noreturn]] void throw_nothing_usable(const PriorDataset& data, bool has_clip);

/// What a CLIP makes of texts: encodings no longer than the prior takes, and none where it takes none.
TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior);

/// A batch on `device`, as the prior takes it: with what the CLIP makes of captions and pictures.
/// @param clip null: the batch has embeddings
PriorInputs to_inputs(const PriorBatch& batch,
                      const at::Device& device,
                      const ClipEmbedder* clip,
                      const PriorConfig& prior);

/// The names are the reference's.
struct PriorPosition : RunPosition {
  /// @param config gives the values of the start
  explicit PriorPosition(const PriorTrainConfig& config) : config_(&config) { reset(); }

  double best_validation_loss = 0;  ///< that of the config before there is one
  int64_t rows_per_epoch = 1;       ///< of the data: no field of a checkpoint

  std::vector<PositionField> fields() override;
  void reset() override;
  /// A checkpoint of the reference only says how many samples the whole run has seen.
  void guess_own_fields() override { loader.row = samples_seen % rows_per_epoch; }
  void forget_losses() override { best_validation_loss = config_->best_validation_loss; }
  std::string description() const override;
  std::string resumes_with() const override;

 private:
  const PriorTrainConfig* config_;
};

/// Of all splits.
int64_t count_rows(const PriorDataset& data);

struct PriorRecord {
  LogRecord values;
  ShownRecord shown;
};

class PriorRun : public RowRun<PriorDataset> {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @param clip open_prior_clip() @throws ConfigError, DataError
  PriorRun(const LoadedPriorConfig& loaded,
           const RunProcess& process,
           const std::shared_ptr<ClipEmbedder>& clip);

  void open() override;

 private:
  void prepare() override;
  void repeat_actions() override { validate(); }
  void open_epoch() override;
  std::optional<int64_t> accumulate() override;
  void after_step() override;
  void close_epoch(bool whole) override;
  void end_epochs() override;
  [[noreturn]] void throw_nothing_usable() const override;
  PriorInputs inputs_of(const PriorBatch& batch);
  LogRecord step_values(double samples_per_second) override;
  /// Losses and similarities of the validation rows; saves the best. @throws StoppedError
  void validate();
  double validation_loss();
  /// Mean loss over the rows of a split; nothing if it has no rows. @throws StoppedError
  std::optional<double> mean_loss(const std::string& split, bool averaged, DropCounts& dropped);
  void log(const std::vector<PriorRecord>& records);
  /// @param label for people
  PriorRecord loss_record(const std::string& folder, const char* label, double loss) const;
  void draw_similarities(const std::string& folder, std::vector<PriorRecord>& records);

  const TrainPriorConfig& config_;
  std::shared_ptr<ClipEmbedder> clip_;  // null: embeddings are read
  PriorPosition& position_;
  PriorTrainer& trainer_;
  double validated_at_ = 0;  // by ProcessGroup::heard_seconds(), or when the run began
};

}  // namespace dalle2
