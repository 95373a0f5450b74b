// SPDX-License-Identifier: MIT
// What the log of a VAE's run says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dist/process_group.h"
#include "model/vae/vqgan_vae.h"
#include "run/loop/run_position.h"
#include "tracker/log/record.h"

namespace dalle2 {

/// What the log says of the autoencoder beside its whole loss: means of the last updates, as
/// LossWindow has them of the whole losses, and how the codes were used since the last record. A
/// position holds it, so that checkpoints have it and a roll-back takes it back.
class VaeDiagnostics {
 public:
  /// Of a pass. @param losses of this rank's share of an update, weighted by it
  /// @param codes of the codebook
  void add(const VaeLosses& losses, int64_t codes);
  /// The autoencoder's update was made or skipped; all ranks call it.
  /// @param device of the losses @param length updates that a mean is of
  void end_update(ProcessGroup& group, const at::Device& device, int64_t codes, int64_t length);
  /// Means of the finite losses, and the use of the codes, which starts over. All ranks call it.
  LogRecord take(ProcessGroup& group);

  /// Every rank knows what all have seen. All ranks call it.
  void gather(ProcessGroup& group);
  /// Call gather() before it is saved. @throws DataError for entries of another form
  void fields(PositionVisitor& visitor);

 private:
  at::Tensor of_update_;       // [losses] of the passes since the last update
  at::Tensor uses_of_update_;  // [codes] int64
  at::Tensor recent_;          // [updates, losses] of all ranks; NaN: there is no such loss
  at::Tensor uses_;            // [codes] int64, of all ranks, until they were gathered last
  at::Tensor own_uses_;        // of this rank, since then
};

}  // namespace dalle2
