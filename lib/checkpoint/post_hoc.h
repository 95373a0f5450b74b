// SPDX-License-Identifier: MIT
// Averages whose length is chosen after training (Karras et al. 2024, arXiv 2312.02696, section 3): what is
// made of those that a run has saved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"

namespace dalle2 {

/// The widest average there is: gamma is 0, and all steps weigh the same.
inline constexpr double kWidestSigma = 0.288;

/// Exponent of the power-function average whose standard deviation is `sigma` of the training time:
/// the gamma >= 0 with sigma^2 = (gamma + 1) (gamma + 2)^-2 (gamma + 3)^-1 (algorithm 2).
/// @throws ConfigError outside 0 < sigma <= kWidestSigma
double gamma_of_sigma(double sigma);

/// The weights over the steps 1 ... `step` of an average.
struct PowerProfile {
  int64_t step = 0;
  double gamma = 0.0;
};

struct PostHocWeights {
  std::vector<double> weights;  ///< one a snapshot
  double missed = 0.0;          ///< |wanted profile - combined profile| / |wanted profile|, L2
};

/// The combination of saved averages whose profile comes nearest to the wanted one, by least
/// squares (algorithm 3). @param snapshots at least one, of steps from 1 on, as the wanted one
PostHocWeights post_hoc_weights(const std::vector<PowerProfile>& snapshots,
                                const PowerProfile& wanted);

/// What to make of the snapshots of a run.
struct PostHocChoice {
  double sigma = 0.0;
  std::optional<int64_t> step = {};  ///< none: the last one saved
};

struct PostHocResult {
  Dict model_file;       ///< version, config and model, as `save_type: model` saves
  int64_t step = 0;      ///< of the first network
  size_t snapshots = 0;  ///< averages that were combined, of the first network
  double missed = 0.0;   ///< the largest of all networks (PostHocWeights)
};

/// Tensors that have no average are those of the newest file.
/// @param paths files of `data_path/averages` and checkpoints, in any order
/// @throws DataError for a file without averages, of another model, or given twice; ConfigError
///         for a sigma out of range or a step that was not reached
PostHocResult combine_post_hoc(const std::vector<std::string>& paths, const PostHocChoice& choice);

}  // namespace dalle2
