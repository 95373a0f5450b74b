// SPDX-License-Identifier: MIT
#include "run/vae/vae_position.h"

#include <fmt/format.h>

#include <optional>

namespace dalle2 {

void VaePosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("step", step);
  visitor.field("samples_seen", samples_seen);
  visitor.own("row", row);
  visitor.own("iteration", iteration);
  int64_t due = discriminator_is_due ? 1 : 0;
  visitor.own("discriminator_is_due", due);
  discriminator_is_due = due != 0;
  std::optional<double> best;
  if (best_validation_loss != 0) best = best_validation_loss;
  visitor.own("best_validation_loss", best);
  best_validation_loss = best.value_or(0);
  visitor.own("validated_step", validated_step);
  visitor.own("grid_step", grid_step);
  visitor.own("model_step", model_step);
  diagnostics.fields(visitor);
}

std::string VaePosition::description() const {
  return fmt::format("step {}, epoch {}, having seen {} samples", step, epoch, samples_seen);
}

}  // namespace dalle2
