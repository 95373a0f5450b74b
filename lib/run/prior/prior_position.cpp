// SPDX-License-Identifier: MIT
// Where a prior run stands.
#include <fmt/format.h>

#include "base/text.h"
#include "run/prior/prior_run.h"

namespace dalle2 {

void PriorPosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("samples_seen", samples_seen);
  visitor.field("best_validation_loss", best_validation_loss);
  visitor.own("row", row);
  visitor.own("block_rows", block_rows);
  visitor.own("iteration", iteration);
}

void PriorPosition::reset() {
  epoch = config_->current_epoch;
  samples_seen = config_->num_samples_seen;
  best_validation_loss = config_->best_validation_loss;
  row = block_rows = iteration = actions_due = 0;
}

void PriorPosition::restart_with_other_data() {
  restart_epoch();
  best_validation_loss = config_->best_validation_loss;  // that was of other rows
  actions_due = 0;
}

std::string PriorPosition::description() const {
  const bool none_yet = best_validation_loss == config_->best_validation_loss;
  return fmt::format("epoch {} having seen {} samples with best validation loss {}",
                     epoch,
                     samples_seen,
                     none_yet ? "N/A" : short_number(best_validation_loss));
}

std::string PriorPosition::resumes_with() const {
  return fmt::format("epoch {} at sample {}", epoch, row);
}

}  // namespace dalle2
