// SPDX-License-Identifier: MIT
// An estimate of the most memory that a run takes, from one model and a few made-up steps.
#pragma once

#include <cstdint>
#include <vector>

#include "config/shared/train_options.h"
#include "run/dry_run.h"

namespace dalle2 {

struct PeakMemory {
  /// Weights, gradients, moments and averages. On the CPU also the program and the copies that are being
  /// saved; with a GPU, these are in host memory.
  uint64_t kept_bytes = 0;
  std::vector<uint64_t>
      activation_bytes;  ///< of a step of each network; 0 for one that is not trained

  /// The networks take their steps one after the other.
  uint64_t peak() const;
};

/// @param on_cpu whether the run trains on the CPU
PeakMemory peak_memory(const DryRunPlan& plan, const SharedTrainConfig& train, bool on_cpu);

/// What a step holds besides the weights and their gradients: a few steps show what a sample takes. Other memory
/// of the process has no part in it.
uint64_t activation_bytes(const DryRunPlan::Network& network,
                          const DryRunPlan& plan,
                          const SharedTrainConfig& train);

/// Averages of the weights, in copies.
int64_t average_copies(const SharedTrainConfig& train);

}  // namespace dalle2
