// SPDX-License-Identifier: MIT
// The parts of `dalle2-train evaluate`, one a kind: each prints its figures as one JSON object.
#pragma once

#include "run/commands.h"

namespace dalle2 {

/// The metrics of /evaluate over samples of the split.
ExitCode evaluate_decoder(const EvaluateCommand& command);
/// The similarities of /train/eval_timesteps.
ExitCode evaluate_prior(const EvaluateCommand& command);
/// The loss, and the retrieval of captions and pictures.
ExitCode evaluate_clip(const EvaluateCommand& command);
/// The errors of the reconstruction.
ExitCode evaluate_vae(const EvaluateCommand& command);

}  // namespace dalle2
