// SPDX-License-Identifier: MIT
// What a run does about losses and gradients that are NaN or infinite. The trainer skips their
// updates; here they are reported, and after too many in a row the run stops or goes back
// (/train/non_finite).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/shared/train_options.h"
#include "run/checkpoints/run_checkpoints.h"

namespace dalle2 {

class UpdateGuard {
 public:
  /// What is passed by reference has to outlive this object. @param suspects what to look for in
  /// the data, for errors
  UpdateGuard(RunSession& session,
              Trainer& trainer,
              RunPosition& position,
              RunCheckpoints& checkpoints,
              const NonFiniteConfig& policy,
              std::string suspects);

  /// Reports skipped updates and acts if there are too many in a row. @param settled false: as far
  /// as is known without waiting for the device
  /// @return false if the run went back: the position is another one
  /// @throws NonFiniteError if the run has to stop
  bool look(bool settled);
  /// Skipped updates of all parts, of the whole run.
  int64_t skipped() const;
  /// Counts what was skipped so far as reported: call it after a checkpoint was loaded.
  void remember();

 private:
  void tell(int64_t part, const SkippedUpdates& skipped) const;
  void roll_back(int64_t part, int64_t in_a_row);
  [[noreturn]] void give_up(int64_t part, int64_t in_a_row, const std::string& why);
  /// "unet 1: ", or nothing where the kind has one part.
  std::string prefix(int64_t part) const;

  RunSession& session_;
  Trainer& trainer_;
  RunPosition& position_;
  RunCheckpoints& checkpoints_;
  const NonFiniteConfig& policy_;
  std::string suspects_;
  std::vector<int64_t> told_;  // of each part: skipped updates that were reported
};

}  // namespace dalle2
