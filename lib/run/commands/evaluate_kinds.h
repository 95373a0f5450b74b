// SPDX-License-Identifier: MIT
// The parts of `dalle2-train evaluate`, one a kind.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "run/commands.h"

namespace dalle2 {

/// The metrics of /evaluate over samples of the split.
nlohmann::ordered_json evaluate_decoder(const EvaluateCommand& command);
/// The similarities of /train/eval_timesteps.
nlohmann::ordered_json evaluate_prior(const EvaluateCommand& command);
/// The errors of the reconstruction.
nlohmann::ordered_json evaluate_vae(const EvaluateCommand& command);

}  // namespace dalle2
