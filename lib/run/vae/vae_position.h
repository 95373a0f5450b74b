// SPDX-License-Identifier: MIT
// Where a VAE's run stands.
#pragma once

#include <cstdint>
#include <string>

#include "run/loop/run_position.h"
#include "run/vae/vae_log.h"

namespace dalle2 {

struct VaePosition : RunPosition {
  int64_t step = 0;                   ///< of the run: updates of both parts, skipped ones too
  int64_t row = 0;                    ///< pictures of this epoch, the dropped ones too
  bool discriminator_is_due = false;  ///< the step's autoencoder has had its update
  double best_validation_loss = 0;    ///< 0: none yet
  // What follows a step may be cut off by a stop, and is then still to be done. Each is the last step
  // that had it, by the number in the names of results: 0 is the first step, -1 none.
  int64_t validated_step = -1;
  int64_t grid_step = -1;
  int64_t model_step = -1;
  VaeDiagnostics diagnostics;

  /// The step that was made last, by the number in the names of results.
  int64_t last_step() const { return step - 1; }

  void fields(PositionVisitor& visitor) override;
  void reset() override { *this = {}; }
  void guess_own_fields() override {}
  void restart_epoch() override { row = iteration = 0; }
  std::string description() const override;
  void gather(ProcessGroup& group) override { diagnostics.gather(group); }
  int64_t sample_of_epoch() const override { return row; }
};

}  // namespace dalle2
