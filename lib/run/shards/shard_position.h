// SPDX-License-Identifier: MIT
// Where a run over shards stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run/loop/run_position.h"

namespace dalle2 {

/// The names are those of the reference's decoder.
struct ShardPosition : RunPosition {
  std::vector<double> validation_losses;  ///< one an epoch, averaged over the trained parts
  /// In which the shards were cut before they were dealt into the splits; 0: not known. The run
  /// keeps it, so that no validation shard is ever trained on.
  int64_t slices = 0;
  int64_t dealt = 0;            ///< slices of this start, once it has dealt the shards; not saved
  bool has_other_data = false;  ///< since this start: `slices` is of those before, and was dropped
  int64_t samples_at_last_save = 0;  ///< of this epoch
  int64_t samples_per_epoch = 0;     ///< 0 until an epoch has been through
  /// Of this epoch, between its validation and its end.
  std::optional<double> validation_loss;

  void fields(PositionVisitor& visitor) override;
  void reset() override {
    const int64_t kept = dealt;
    *this = {};
    dealt = kept;
  }
  /// A checkpoint of the reference has no place of the loader: the sample count is the next best.
  void guess_own_fields() override;
  void restart_epoch() override;
  void restart_with_other_data() override;
  void forget_losses() override;
  std::string description() const override;
  std::string resumes_with() const override;

  bool is_best() const;  ///< validation_loss is less than all earlier ones
  /// `slices`, within what a config allows; 0: not known
  int64_t slices_of_run() const;
};

/// ShardPosition::slices_of_run() of a checkpoint; none if it does not say.
std::optional<int64_t> slices_of(const Cursor& checkpoint);

}  // namespace dalle2
