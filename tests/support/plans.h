// SPDX-License-Identifier: MIT
// Plans of configs that are right.
#pragma once

#include "config/decoder/decoder_config.h"
#include "config/prior/prior_config.h"

namespace dalle2 {

/// @throws ConfigError listing every fault
inline DecoderPlan plan_decoder(const DecoderConfig& config) {
  Faults faults;
  DecoderPlan plan = plan_decoder(config, faults);
  faults.throw_if_any("decoder");
  return plan;
}

/// @throws ConfigError listing every fault
inline PriorPlan plan_prior(const PriorConfig& config, const LossPlan& loss = {}) {
  Faults faults;
  PriorPlan plan = plan_prior(config, loss, faults);
  faults.throw_if_any("prior");
  return plan;
}

}  // namespace dalle2
